"""The picture of the README: frames of `menv watch --gif` next to the curves of `menv plot`, as one animated GIF.

menv train pettingzoo:mpe/simple_tag_v3 --policies auto --seed 0 --stop time_total_s=150 --run-dir tag
menv watch tag --gif watch.gif --episodes 3 --trust
menv plot tag -o curve.png
python docs/images/simple_tag.py watch.gif curve.png docs/images/simple_tag.gif
"""

import sys

from PIL import Image, ImageSequence

HEIGHT = 320


def main(game: str, curve: str, out: str) -> None:
    """Put the curve to the right of each frame and write the GIF."""
    picture = Image.open(curve).convert("RGB")
    picture = picture.resize((picture.width * HEIGHT // picture.height, HEIGHT))
    frames = []
    for frame in ImageSequence.Iterator(Image.open(game)):
        page = Image.new("RGB", (HEIGHT + picture.width, HEIGHT), "white")
        page.paste(frame.convert("RGB").resize((HEIGHT, HEIGHT)), (0, 0))
        page.paste(picture, (HEIGHT, 0))
        frames.append(page.quantize(64))
    frames[0].save(out, save_all=True, append_images=frames[1:], duration=120, loop=0, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
