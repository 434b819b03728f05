"""Where a run stands on the paper's curve of scores against compute."""

PAPER = (
    (8.9e16, 74.1, "ELECTRA-Small after 6.25% of its training"),
    (1.8e17, 76.0, "ELECTRA-Small after 12.5%"),
    (3.6e17, 77.7, "ELECTRA-Small after 25%"),
    (7.1e17, 79.0, "ELECTRA-Small after 50%"),
    (1.4e18, 79.9, "ELECTRA-Small"),
    (6.4e19, 85.1, "ELECTRA-Base"),
    (7.1e20, 89.0, "ELECTRA-Large after 400k steps"),
    (3.1e21, 89.5, "ELECTRA-Large"),
)
"""FLOPs by the paper's count, GLUE dev in points, and the model. Source: tables 1 and 2."""


def place_on_the_papers_curve(flops: float) -> str:
    """Return in words which of the paper's points a run has passed, and which is the next.

    Args:
        flops: Operations so far, by the paper's count (`count_as_the_paper`).
    """
    passed = [point for point in PAPER if point[0] <= flops]
    following = [point for point in PAPER if point[0] > flops]
    spent = f"{flops:.1e} FLOPs by the paper's count"
    if not passed:
        times = following[0][0] / flops
        name, score = following[0][2], following[0][1]
        return f"{spent}: 1/{times:,.0f} of {name}, which had GLUE {score}"
    last = passed[-1]
    text = f"{spent}: past {last[2]}, which had GLUE {last[1]}"
    if following:
        text += f"; {flops / following[0][0]:.0%} of {following[0][2]} ({following[0][1]})"
    return text
