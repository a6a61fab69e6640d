"""The sentences of the paper that claims stand for, with their places.

Figures and sections are numbered as in the first version of the paper. The
conference version, which adds the random walk, is told in our own words.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from retvar.paper.declarations import Claim


class Sentence(NamedTuple):
    """A sentence of the paper, or what stands in its place."""

    key: str  #: by which claims name it
    place: str  #: section, figure, table or appendix
    text: str
    quoted: bool = True  #: word for word; otherwise in our words


def said(key: str, *claims: Claim) -> tuple[Claim, ...]:
    """Claims that stand for the sentence with this key."""
    sentence = SENTENCES[key]
    return tuple(dataclasses.replace(claim, sentence=sentence.key) for claim in claims)


_ALL = [
    Sentence(
        "purpose", "Section 5, first sentence",
        "The primary purpose of these experiments is to demonstrate that both the direct method "
        "and VTD can approximate the true expected V under various conditions in the tabular "
        "setting.",
    ),
    Sentence("equal-steps", "Section 5.1, on Figure 4a", "Both algorithms behave similarly."),
    Sentence(
        "smaller-step", "Section 5.1, on Figure 4b",
        "The direct algorithm smoothly approaches the correct value, while VTD first dips well "
        "below zero.",
    ),
    Sentence(
        "larger-step", "Section 5.1, on Figure 4c",
        "While both methods overshoot the target, VTD has greater overshoot.",
    ),
    Sentence(
        "unequal-steps", "Section 5.1, on Figures 4b and 4c",
        "For both cases of unequal step-size we see higher variance in the variance estimates "
        "for VTD.",
    ),
    Sentence(
        "frozen-value", "Caption of Figure 5",
        "Notice the increased variance in the estimates for VTD, particularly in State 0.",
    ),
    Sentence(
        "insensitive", "Section 5.1, on Figure 6",
        "We can see that the direct method is largely insensitive to step-size ratio, but that "
        "VTD has higher mean squared error (MSE) except when the step-sizes are equal.",
    ),
    Sentence(
        "very-small-steps", "Caption of Figure 6",
        "The MSE of the VTD algorithm is higher than the direct algorithm, except when the "
        "step-size is the same for all estimators, α = ᾱ or for very small ᾱ.",
    ),
    Sentence(
        "adadelta", "Section 5.1, on Figure 7",
        "… using a separate ADADELTA step-size calculation for each estimator results in higher "
        "variance for VTD as expected …",
    ),
    Sentence(
        "adadelta-steps", "Appendix C, on Figure 14",
        "Thus, the values shown here are the average step-size used over each episode.",
    ),
    Sentence(
        "complex-alike", "Section 5.2, on Figure 8",
        "… both algorithms estimate V with similar results.",
    ),
    Sentence(
        "value-error-mean", "Section 5.3, on Figure 9",
        "While the average estimate is closer to the true values for VTD, the variance of the "
        "estimates is much larger.",
    ),
    Sentence(
        "value-error-bias", "Section 5.3, on Figure 9",
        "Further, the average estimates for VTD are either unchanged or move negative, while "
        "those of the direct algorithm tend toward positive bias.",
    ),
    Sentence(
        "less-affected", "Section 5.3, on Figure 10",
        "These results suggest the direct algorithm is less affected by error in J.",
    ),
    Sentence(
        "variance-traces", "Section 5.4, on Figure 11a",
        "Here we see no significant difference between VTD and the direct algorithm.",
    ),
    Sentence(
        "value-traces", "Section 5.4, on Figure 11b",
        "Here we do see a difference, particularly the VTD method shows more variance in its "
        "estimates for State 0 and 3.",
    ),
    Sentence(
        "off-policy-target", "Section 5.5, on Figure 12",
        "… both methods are able achieve the same results in this setting.",
    ),
    Sentence(
        "off-policy-return", "Section 5.5, on Figure 13",
        "… both algorithms successfully estimate the return in this setting.",
    ),
    Sentence(
        "off-policy-spread", "Section 5.5, on Figure 13",
        "However, despite having the same step-size as the value estimator, VTD produces higher "
        "variance in its estimates, as is most clearly seen in State 3.",
    ),
    Sentence(
        "alike-updates", "Appendix D, on the grey rows of Table 1",
        "In this case we see that the average magnitude of updates is nearly identical.",
    ),
    Sentence(
        "larger-updates", "Appendix D, on the other rows of Table 1",
        "For these experiments we see that the average magnitude of the VTD updates is much "
        "larger than for the direct algorithm.",
    ),
    Sentence(
        "large-returns", "Section 6",
        "One would expect the differences between the two approaches to be most pronounced for "
        "domains with larger returns than those demonstrated here.",
    ),
    Sentence(
        "walk-better", "Conference version, random walk with linear features",
        "Direct reaches a much better solution than VTD.", quoted=False,
    ),
    Sentence(
        "walk-sensitive", "Conference version, random walk with linear features",
        "Direct is far less sensitive to the step size ᾱ than VTD.", quoted=False,
    ),
    Sentence(
        "centred", "Not in the paper",
        "The centred estimator is retvar's own: it measures deviations from a mean that it "
        "learns, so that an error of the value is no error of the variance.", quoted=False,
    ),
]  # fmt: skip
SENTENCES = {sentence.key: sentence for sentence in _ALL}

CLOSELY = {  # what does not hold, and why; the documentation has more
    "The ratio of step sizes": (
        "The caption says that VTD's error is higher except when the step sizes are the same, or "
        "for very small ᾱ. At ᾱ = 10⁻⁵ it is 13 to 18 times direct's for α ≤ 10⁻⁶, and more for "
        "α > ᾱ: the ratio hardly depends on ᾱ. Both errors are only small in absolute terms."
    ),
    "The row of ADADELTA": (
        "None of the interpretations that were tried gives the four numbers; a decay of 0.995 with "
        "ε = 5·10⁻⁷ instead of 0.99 and 10⁻⁶ comes within 6% on average. The claim of the figure "
        "does not depend on this: VTD varies far more than direct over runs in state 0."
    ),
}
