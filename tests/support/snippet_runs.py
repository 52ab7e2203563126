"""Runs a page's snippets in order, in one folder: a terminal of bash, and a Python that keeps its variables."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

from scalestudy.experiments.spec.reading import parse_study
from scalestudy.training.registry import DATASETS, MODELS
from tests.support.ports import listens
from tests.support.project_files import copy_project
from tests.support.snippets import BACKGROUND, NOT_OUTPUT, OUTPUT_OF, RAN_BEFORE, Block, Page, shows_output
from tests.support.studies import environment

SECONDS = 560.0
"""The most that one block may take."""
BEGUN = (".yaml", ".py")
"""Files that a study was made from."""
SHARE_OF_WORDS = 0.75
NEWEST = re.compile(r"([\w./~-]+-)…")
BESIDE = {
    "name": "my-study",
    "sweep": "{num_gpus: [1, 2], batch_size: [64, 128], learning_rate: [0.1, 0.2]}",
    "targets": "{accuracy: [0.8]}",
}
"""What stands beside a part of a spec, where that does not say it itself."""
PREAMBLE = """\
set -eo pipefail
newest() { for found in "$1"*; do :; done; [ -e "$found" ] || { echo "there is no $1…" >&2; exit 1; }; echo "$found"; }
if [ -f "$TERMINAL" ]; then . "$TERMINAL"; fi
"""
POSTSCRIPT = '\n{ export -p; printf "cd %q\\n" "$PWD"; } >"$TERMINAL"\n'
NOTEBOOK = """\
import json, os, sys
sys.path.insert(0, "")
lines, space = os.fdopen(os.dup(0)), {"__name__": "__main__"}
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for line in lines:
    name, text, mark = json.loads(line)
    exec(compile(text, name, "exec"), space)
    print(mark, flush=True)
"""


class FailedError(AssertionError):
    """A snippet that does not do what its page says."""


def user_environment(home: Path, **variables: str) -> dict[str, str]:
    """What a user has who installed the package: its commands on the path, and a home of the test's own."""
    cache = os.environ.get(
        "XDG_CACHE_HOME", str(Path.home() / ".cache")
    )  # of fonts, which take seconds to look through
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return environment(HOME=str(home), XDG_CACHE_HOME=cache, PATH=path, **variables)


def copy_repository(folder: Path) -> None:
    """The project's own files, and a `.venv` that is this Python's."""
    copy_project(folder)
    (folder / ".venv").symlink_to(sys.prefix)


class PageRun:
    """One page's folder with its terminal. What is in the background ends with it."""

    def __init__(
        self, page: Page, folder: Path, variables: Mapping[str, str], printed: Iterable[tuple[str, str]] = ()
    ) -> None:
        self._page, self._folder = page, folder
        self._beside = Path(
            tempfile.mkdtemp(prefix=f"{folder.name}-terminal-", dir=folder.parent)
        )  # the folder itself holds what a user's would
        self._variables = {**variables, "TERMINAL": str(self._beside / "state")}
        self._notebook: subprocess.Popen[str] | None = None
        self._background: list[tuple[subprocess.Popen[bytes], str]] = []
        self._begun = {file.name: file.read_text("utf-8") for file in folder.glob("*.*") if file.suffix in BEGUN}
        self.printed = list(printed)
        """The commands of each block that ran, and what it printed."""

    def __enter__(self) -> PageRun:
        return self

    def __exit__(self, *_: object) -> None:
        for process, url in self._background:
            self._end(process, url)
        if self._notebook is not None:
            self._notebook.kill()
            self._notebook.communicate()

    def run(self) -> None:
        """Every block in its order. Raises FailedError with its place."""
        before: Block | None = None
        for block in self._page.blocks:
            self._take(block, before)
            before = block

    def _take(self, block: Block, before: Block | None) -> None:
        if block.title is not None:
            self._write(block)
        if block.not_run:
            return
        if block.language == "bash" and BACKGROUND in block.said:
            self._start(block)
        elif block.language == "bash" or block.is_session:
            self._remember(block, self._shell(block))
        elif block.language == "python":
            self._python(block)
        elif block.language == "yaml":
            check_spec(block, self._page.name)
        elif block.language == "json":
            json.loads(block.text)
        if block.language == "text":
            self._compare(block, before)

    def _fail(self, block: Block, message: str) -> FailedError:
        return FailedError(f"{self._page.name}:{block.line}: {message}\n\n{block.text}")

    def _write(self, block: Block) -> None:
        file = (self._folder / str(block.title)).resolve()
        if not file.is_relative_to(self._folder.resolve()):
            raise self._fail(block, f"title {block.title}: leads out of the folder")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, encoding="utf-8")

    def _remember(self, block: Block, output: str) -> None:
        self.printed.append((block.commands, output))

    def _script(self, block: Block, after: str) -> list[str]:
        text = NEWEST.sub(r'"$(newest \1)"', self._not_yet_run(block))
        if "…" in re.sub(r"(^|\s)#.*", "", text):
            raise self._fail(block, "a command with … can't be run")
        script = self._beside / f"line-{block.line}.sh"
        script.write_text(f"{PREAMBLE}{text}{after}", encoding="utf-8")
        return ["bash", str(script)]

    def _not_yet_run(self, block: Block) -> str:
        """The commands without the one whose result the folder begins with, from the very files that are there."""
        if (command := block.said.get(RAN_BEFORE)) is None:
            return block.commands
        changed = [name for name, text in self._begun.items() if (self._folder / name).read_text("utf-8") != text]
        lines = block.commands.splitlines(keepends=True)
        left = [line for line in lines if line.partition("#")[0].strip() != command]
        if changed or len(left) != len(lines) - 1 or f"{command}\n" not in [ran for ran, _ in self.printed]:
            raise self._fail(block, f"{command} has not run before with these files (changed: {changed})")
        return "".join(left)

    def _shell(self, block: Block) -> str:
        process = subprocess.Popen(
            self._script(block, POSTSCRIPT), cwd=self._folder, env=self._variables, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise self._fail(block, f"still runs after {SECONDS} s; it said\n{process.communicate()[0]}") from None
        if process.returncode != 0:
            raise self._fail(block, f"exit status {process.returncode}; it said\n{output}")
        return output

    def _python(self, block: Block) -> None:
        """A file is only compiled; anything else runs after what ran before it on this page."""
        code = NEWEST.sub(self._newest, block.text)
        compile(code, f"{self._page.name}:{block.line}", "exec")
        if block.title is not None:
            return
        mark = f"-- end of line {block.line} --"
        notebook = self._notebook = self._notebook or self._start_notebook()
        assert notebook.stdin is not None
        assert notebook.stdout is not None
        notebook.stdin.write(json.dumps([f"{self._page.name}:{block.line}", code, mark]) + "\n")
        notebook.stdin.flush()
        watchdog = threading.Timer(SECONDS, notebook.kill)
        watchdog.start()
        output = ""
        for line in notebook.stdout:
            if line.endswith(f"{mark}\n"):
                watchdog.cancel()
                self._remember(block, output + line.removesuffix(f"{mark}\n"))
                return
            output += line
        watchdog.cancel()
        raise self._fail(block, f"Python ended; it said\n{output}")

    def _newest(self, found: re.Match[str]) -> str:
        """`runs/my-study-…` in Python, which has no shell."""
        paths = sorted(self._folder.glob(f"{found[1]}*"))
        return str(paths[-1].relative_to(self._folder)) if paths else found[0]

    def _start_notebook(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-u", "-c", NOTEBOOK], cwd=self._folder, env=self._variables, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def _start(self, block: Block) -> None:
        """Commands that stay in the foreground of a terminal of their own, until their address answers."""
        url = block.said[BACKGROUND]
        if listens(_port(url)):
            raise self._fail(block, f"something else listens at {url} of this machine already")
        log = self._beside / f"line-{block.line}.log"
        with log.open("wb") as said:
            process = subprocess.Popen(
                self._script(block, ""), cwd=self._folder, env=self._variables, stdin=subprocess.DEVNULL,
                stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._background.append((process, url))
        end = time.monotonic() + SECONDS
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > end:
                raise self._fail(block, f"{url} does not answer; it said\n{log.read_text('utf-8')}")
            time.sleep(0.3)

    def _end(self, process: subprocess.Popen[bytes], url: str) -> None:
        """By Ctrl-C's gentler sibling, to the whole group; nothing may go on listening."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        end = time.monotonic() + 30
        while listens(_port(url)) and time.monotonic() < end:
            time.sleep(0.1)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        if time.monotonic() > end:
            raise FailedError(f"{self._page.name}: {url} still listens 30 s after SIGTERM")

    def _compare(self, block: Block, before: Block | None) -> None:
        output = self._output_of(block, before)
        if output is not None and (missing := not_shown(block.shown, output)):
            raise self._fail(block, f"the output has no {missing}; it is\n{output}")

    def _output_of(self, block: Block, before: Block | None) -> str | None:
        """What a text block is compared with; None: it says that it is no output of this page, or is a file."""
        if NOT_OUTPUT in block.said or block.title is not None:
            return None
        if (command := block.said.get(OUTPUT_OF)) is not None:
            outputs = [output for commands, output in self.printed if command in commands]
            if not outputs:
                raise self._fail(block, f"no command before it is: {command}")
            return outputs[-1]
        if shows_output(block, before):
            return self.printed[-1][1]
        raise self._fail(block, "no block before it has printed it: say `the output of: …` or `not output: …`")


def check_spec(block: Block, page: str) -> None:
    """A whole spec, or a part of one. Raises SpecError with every problem."""
    lacking = [
        f"{key}: {value}\n" for key, value in BESIDE.items() if not re.search(f"^{key}:", block.text, re.MULTILINE)
    ]
    parse_study(block.text + "".join(lacking), f"{page}:{block.line}", models=MODELS, datasets=DATASETS)


def not_shown(shown: str, output: str) -> list[str]:
    """What of a shown output is not in the real one: a column's heading, or more than a quarter of its words.

    Numbers, times and paths differ from run to run, and are not compared.
    """
    flat = _flat(output)
    missing = [heading for heading in headings(shown) if _flat(heading) not in flat]
    words = sorted(set(re.findall(r"[A-Za-z_]{4,}", re.sub(r"\S*/\S*", "", shown))))
    there = set(re.findall(r"[A-Za-z_]{4,}", output))
    lacking = [word for word in words if word not in there]
    return missing + (lacking if len(lacking) > (1 - SHARE_OF_WORDS) * len(words) else [])


def _flat(text: str) -> str:
    return re.sub(r"\d+(?:\.\d+)?", "0", " ".join(text.split()))


def headings(shown: str) -> list[str]:
    """The column headings of a shown table: its first line, where that has three cells or more and none is a number."""
    cells = re.split(r"\s{2,}", (shown.splitlines() or [""])[0].strip())
    return cells if len(cells) >= 3 and not any(re.match(r"[\d.,–-]+%?$", cell) for cell in cells) else []


def _port(url: str) -> int:
    return urlsplit(url).port or 80


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status) < 500
    except HTTPError as error:
        return error.code < 500
    except OSError:
        return False
