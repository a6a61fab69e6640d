"use strict";
(() => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  const kept = { get: () => { try { return localStorage.getItem("retvar-theme"); } catch { return null; } },
                 set: (name) => { try { localStorage.setItem("retvar-theme", name); } catch { /* private */ } } };
  if (["light", "dark"].includes(kept.get())) root.dataset.theme = kept.get();
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
  document.addEventListener("DOMContentLoaded", () => {
    const toggle = document.getElementById("theme");
    const label = () => { toggle.textContent = isDark() ? "light theme" : "dark theme"; };
    label();
    dark.addEventListener("change", label);
    toggle.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      kept.set(root.dataset.theme);
      label();
    });
    const contents = document.querySelector(".contents"), narrow = matchMedia("(max-width: 62rem)");
    if (contents) {
      const fit = () => { contents.open = !narrow.matches; };
      fit();
      narrow.addEventListener("change", fit);
      const links = new Map([...contents.querySelectorAll("a")].map((a) => [a.hash.slice(1), a]));
      links.forEach((a) => a.addEventListener("click", () => { if (narrow.matches) contents.open = false; }));
      const places = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
      const follow = () => {
        const passed = places.filter((each) => each.getBoundingClientRect().top < innerHeight / 3);
        links.forEach((a) => a.classList.remove("here"));
        const here = links.get((passed.pop() || places[0] || {}).id);
        if (!here) return;
        here.classList.add("here");
        if (!narrow.matches && contents.scrollHeight > contents.clientHeight)
          contents.scrollTop = here.offsetTop - contents.clientHeight / 2;
      };
      let waiting = false;
      addEventListener("scroll", () => {
        if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; follow(); }); }
      }, { passive: true });
      follow();
    }
    document.querySelectorAll(".copy").forEach((box) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "copy";
      button.addEventListener("click", async () => {
        const range = document.createRange();
        range.selectNodeContents(box.querySelector("pre"));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        try { await navigator.clipboard.writeText(String(range)); } catch { document.execCommand("copy"); }
        button.textContent = "copied";
        setTimeout(() => { button.textContent = "copy"; }, 1500);
      });
      box.append(button);
    });
    const number = (text) => {
      const found = parseFloat(text.replaceAll(",", "").replace("−", "-").replace("∞", "Infinity"));
      return Number.isNaN(found) ? null : found;
    };
    document.querySelectorAll("table.sortable").forEach((table) => {
      const body = table.tBodies[0];
      table.querySelectorAll("thead th").forEach((head, k) => head.addEventListener("click", () => {
        const order = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
        const rows = [...body.rows].map((row) => [row.cells[k].textContent.trim(), row]);
        const compare = ([a], [b]) => {
          const [x, y] = [number(a), number(b)];
          if (x === null || y === null) {
            if (x === null && y === null) return order * a.localeCompare(b, undefined, { numeric: true });
            return x === null ? 1 : -1;
          }
          return order * (x - y);
        };
        rows.sort(compare).forEach(([, row]) => body.append(row));
        table.querySelectorAll("thead th").forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", order > 0 ? "ascending" : "descending");
      }));
    });
    addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
  });
})();
