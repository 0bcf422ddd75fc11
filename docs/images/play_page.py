"""A picture of the page of `menv play --browser`, after a few moves.

menv play runs/tricks --as south --level hard --trust --seed 1 --browser
python -m docs.images.play_page http://127.0.0.1:8765/ 2 docs/assets/card_game/page.png
"""

import sys
from pathlib import Path

from PIL import Image

from tests.browser import Browser


def main(url: str, moves: str, out: str) -> None:
    """Take the first legal action several times, and write the picture with few colours."""
    with Browser("--force-prefers-reduced-motion", width=900) as page:
        page.open(url)
        for _ in range(int(moves)):
            page.wait_for("!waiting && mine()")
            page.evaluate("play(position.actions[0].action)")
        page.wait_for("!waiting && mine()")
        page.resize(900, page.evaluate("document.body.offsetHeight"))
        page.screenshot(Path(out))
    Image.open(out).convert("RGB").quantize(64).save(out, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
