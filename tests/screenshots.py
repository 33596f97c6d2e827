"""Makes the pictures in the documents: a report of a made-up campaign, and the live page beside a campaign at work.

    python tests/screenshots.py          # writes hpo/views/report.png and hpo/views/watch.png

Needs Debian's chromium and `bash jobs/setup.sh dev browser`. Takes about a minute."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

import synthetic
from PIL import Image
from places import ROOT
from playwright.sync_api import Page, sync_playwright
from terminal import Terminal

from hpo.cli import main as hpo

OUT = ROOT / "hpo" / "views"
WIDTH = 1024

TASK = """
import math, random, time, hpo

def evaluate(trial):
    p, rng = trial.params, random.Random(trial.seed)
    best = 0.95 - 0.02 * abs(math.log10(p["lr"]) + 2.5) - 0.01 * abs(p["depth"] - 5) - 0.1 * abs(p["dropout"] - 0.2)
    best += 0.012 * (p["optimizer"] == "AdamW")
    for epoch in range(1, 13):
        time.sleep(0.12)
        accuracy = best - 0.5 * math.exp(-epoch / 3) + rng.gauss(0, 0.003)
        trial.report(epoch, accuracy)
    return accuracy

space = hpo.SearchSpace(
    optimizer=hpo.Categorical("SGD", "Adam", "AdamW"),
    lr=hpo.Float(1e-5, 1.0, log=True),
    depth=hpo.Int(1, 8),
    dropout=hpo.Float(0.0, 0.6),
)
task = hpo.Task(space, evaluate, objectives={"accuracy": "maximize"})
"""
CAMPAIGN = """
task = "task.py:task"
directory = "images"
evaluations = 120

[layout]
islands = 2

[search]
pruner = "halving"
min_steps = 3
"""


def keep(page: Page, name: str, height: int) -> None:
    """The top of the page, in as few colours as it takes."""
    data = page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
    picture = (
        Image.open(io.BytesIO(data))
        .convert("RGB")
        .quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    picture.save(OUT / name, optimize=True)
    print(f"{OUT / name}: {(OUT / name).stat().st_size // 1000} kB")


def report(page: Page, home: Path) -> None:
    synthetic.make(home / "digits", 400)
    assert hpo(["report", str(home / "digits")]) == 0
    page.goto((home / "digits" / "report.html").as_uri())
    page.wait_for_selector("figure[data-plot=history] path", state="attached")
    keep(page, "report.png", 1280)


def live_page(page: Page, home: Path) -> None:
    terminal = Terminal(home)
    terminal.write("task.py", TASK)
    terminal.write("c.toml", CAMPAIGN)
    try:
        campaign = terminal.start("run", "c.toml", "--ranks", 4)
        while not (home / "images" / "campaign.json").exists():
            assert campaign.process.poll() is None
            page.wait_for_timeout(200)
        server = terminal.start("watch", "images", "--port", 0)
        assert server.process.stdout is not None
        page.goto(server.process.stdout.readline().strip())
        page.wait_for_selector("figure[data-plot=history] path", state="attached", timeout=120_000)
        page.wait_for_timeout(20_000)
        keep(page, "watch.png", 1000)
    finally:
        terminal.kill()


def main() -> None:
    browser = shutil.which("chromium")
    assert browser is not None, "chromium is missing: apt-get install chromium"
    with tempfile.TemporaryDirectory() as home, sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = opened.new_page(viewport={"width": WIDTH, "height": 1300}, color_scheme="light")
        report(page, Path(home))
        live_page(page, Path(home))
        opened.close()


if __name__ == "__main__":
    main()
