"use strict";
addEventListener("DOMContentLoaded", () => {
  const byId = (name) => document.getElementById(name);
  const colours = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"];
  const ink = () => getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  const soft = () => getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
  const show = (name, there) => {
    byId(name).classList.toggle("hidden", !there);
    const link = document.querySelector(`.contents a[href="#${name}"]`);
    if (link) link.parentElement.classList.toggle("hidden", !there);
  };
  const short = (x) => x === null ? "" : Math.abs(x) >= 100 ? x.toFixed(0) : x.toPrecision(3);
  const element = (tag, text, parent) => {
    const made = document.createElement(tag);
    made.textContent = text;
    parent.append(made);
    return made;
  };
  const canvas = (name, ratio) => {
    const board = byId(name), scale = devicePixelRatio || 1;
    const width = board.parentElement.clientWidth, height = Math.max(120, width * ratio);
    board.width = width * scale;
    board.height = height * scale;
    board.style.height = `${height}px`;
    const pen = board.getContext("2d");
    pen.scale(scale, scale);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    return [pen, width, height];
  };
  const range = (numbers) => {
    const known = numbers.filter((x) => x !== null);
    if (!known.length) return null;
    const [low, high] = [Math.min(...known), Math.max(...known)];
    return high > low ? [low, high] : [low - 0.5, high + 0.5];
  };
  const mix = (share, from, to) => `rgb(${from.map((x, k) => Math.round(x + share * (to[k] - x))).join(",")})`;
  const drawMap = (name, map, values, from, to) => {
    const [pen, width, height] = canvas(name, map.rows / map.columns), bounds = range(values);
    const [w, h] = [width / map.columns, height / map.rows];
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    values.forEach((x, k) => {
      const [left, top] = [(k % map.columns) * w, Math.floor(k / map.columns) * h];
      const share = x === null || !bounds ? null : (x - bounds[0]) / (bounds[1] - bounds[0]);
      pen.fillStyle = share === null ? soft() : mix(share, from, to);
      pen.fillRect(left + 0.5, top + 0.5, w - 1, h - 1);
      pen.fillStyle = share === null ? ink() : share > 0.5 ? "#fff" : "#111";
      const text = x === null ? (map.letters[k] || "").trim() : short(x);
      if (w > 24) pen.fillText(text, left + w / 2, top + h / 2, w - 4);
    });
  };
  const drawCurves = (name, curves, what) => {
    const [pen, width, height] = canvas(name, 0.55);
    const bounds = range(curves.states.flatMap((each) => each[what])), last = curves.at[curves.at.length - 1] || 1;
    if (!bounds) return;
    const [left, bottom] = [48, height - 20];
    const x = (at) => left + (width - left - 8) * at / last;
    const y = (z) => bottom - (bottom - 8) * (z - bounds[0]) / (bounds[1] - bounds[0]);
    pen.fillStyle = ink();
    pen.strokeStyle = soft();
    [0, 0.5, 1].forEach((share) => {
      const z = bounds[0] + share * (bounds[1] - bounds[0]);
      pen.beginPath(); pen.moveTo(left, y(z)); pen.lineTo(width - 8, y(z)); pen.stroke();
      pen.textAlign = "right"; pen.textBaseline = "middle"; pen.fillText(short(z), left - 4, y(z));
      pen.textAlign = share ? share === 1 ? "right" : "center" : "left";
      pen.fillText(Math.round(last * share).toLocaleString("en"), x(last * share), bottom + 12);
    });
    curves.states.forEach((each, k) => {
      pen.strokeStyle = pen.fillStyle = colours[k];
      pen.lineWidth = 1.8;
      pen.beginPath();
      let down = false;
      each[what].forEach((z, i) => {
        if (z === null) { down = false; return; }
        if (down) pen.lineTo(x(curves.at[i]), y(z)); else pen.moveTo(x(curves.at[i]), y(z));
        down = true;
      });
      pen.stroke();
      each[what].forEach((z, i) => { if (z !== null && curves.at.length < 12) { pen.beginPath(); pen.arc(x(curves.at[i]), y(z), 2.5, 0, 7); pen.fill(); } });
    });
  };
  let state = null;
  const draw = () => {
    if (!state) return;
    byId("phase").textContent = state.phase;
    byId("done").textContent = state.transitions.toLocaleString("en") + (state.total ? ` of ${state.total.toLocaleString("en")}` : "");
    byId("seconds").textContent = state.seconds;
    byId("left").textContent = state.left || "–";
    const bar = byId("bar");
    if (state.phase === "done") bar.value = 1;
    else if (state.total) bar.value = state.transitions / state.total;
    else bar.removeAttribute("value");
    show("map", state.map);
    if (state.map) {
      drawMap("map-value", state.map, state.map.value, [233, 242, 251], [11, 83, 148]);
      drawMap("map-std", state.map, state.map.std, [255, 243, 222], [140, 45, 4]);
    }
    const curves = state.curves && state.curves.states && state.curves.states.length;
    show("curves", curves);
    if (curves) {
      byId("legend").replaceChildren();
      state.curves.states.forEach((each, k) => {
        const entry = element("span", "", byId("legend"));
        element("span", "", entry).className = "method";
        entry.firstChild.style.background = colours[k];
        entry.append(each.label);
      });
      drawCurves("curve-value", state.curves, "value");
      drawCurves("curve-std", state.curves, "std");
    }
    show("table", state.table);
    if (state.table) {
      const [head, body] = [document.querySelector("#table thead"), document.querySelector("#table tbody")];
      head.replaceChildren();
      body.replaceChildren();
      const top = element("tr", "", head);
      state.table.heading.forEach((name) => { element("th", name, top).scope = "col"; });
      state.table.rows.forEach((row) => {
        const line = element("tr", "", body);
        row.forEach((cell, k) => element(k ? "td" : "th", cell, line));
      });
      const hidden = state.table.hidden;
      byId("hidden").textContent = hidden ? `The most visited; ${hidden.toLocaleString("en")} more ${state.table.unit}s are not shown.` : "";
    }
    show("warnings", state.warnings && state.warnings.length);
    const list = document.querySelector("#warnings ul");
    list.replaceChildren();
    (state.warnings || []).forEach((each) => element("li", each, list));
    const checks = byId("checks");
    checks.replaceChildren();
    (state.checks || []).forEach((each) => {
      const title = element("h3", `${each.title}: `, checks);
      const word = element("b", each.kind, title);
      word.className = each.kind === "agrees" ? "good" : each.kind === "disagrees" ? "bad" : "";
      const lines = element("ul", "", checks);
      lines.className = "soft lines";
      each.lines.forEach((text) => element("li", text, lines));
    });
  };
  addEventListener("resize", draw);
  byId("theme").addEventListener("click", () => requestAnimationFrame(draw));
  let report = null, missed = 0;
  byId("show").addEventListener("click", () => { document.open(); document.write(report); document.close(); });
  const ask = async () => {
    try {
      state = await (await fetch("state.json")).json();
      missed = 0;
      draw();
      if (state.report) { report = await (await fetch(state.report)).text(); show("report", true); }
    } catch {
      missed += 1;
    }
    if (state && ["done", "ended early"].includes(state.phase)) return;
    if (missed > 5) { byId("phase").textContent = "the command has ended"; return; }
    setTimeout(ask, 400);
  };
  ask();
});
