"""That a page which says something untrue is found: small pages with real commands."""

import os
import textwrap

import pytest

from scalestudy.experiments.spec.reading import SpecError
from tests.support.ports import free_port, listens
from tests.support.snippet_runs import FailedError, PageRun, copy_repository, headings, not_shown, user_environment
from tests.support.snippets import read_page
from tests.support.studies import REPOSITORY


@pytest.fixture
def run(tmp_path):
    """Runs a page, with `~~~` for fences; its folder."""
    folder = tmp_path / "folder"
    folder.mkdir()

    def run_page(text, printed=()):
        page = read_page(textwrap.dedent(text), "page.md")
        with PageRun(page, folder, user_environment(tmp_path), printed) as ran:
            ran.run()
        return folder

    return run_page


def test_one_terminal_keeps_its_folder_and_its_variables(run):
    folder = run(
        """\
        ~~~bash
        mkdir a && cd a
        export GREETING="it's me"
        ~~~
        ~~~bash
        echo "$GREETING" >greeting
        ~~~
        """
    )
    assert (folder / "a" / "greeting").read_text() == "it's me\n"
    assert [path.name for path in folder.iterdir()] == ["a"]


@pytest.mark.parametrize("commands", ["false\ntrue", "true\nscalestudy rnu", "false | cat", "cat <missing"])
def test_a_command_that_fails_fails_its_page_with_its_line(run, commands):
    with pytest.raises(FailedError, match=r"page\.md:3: exit status [1-9]"):
        run(f"# A\n\n~~~bash\n{commands}\n~~~\n")


def test_a_command_that_reads_its_terminal_finds_it_empty(run):
    with pytest.raises(FailedError, match="exit status 1"):
        run("~~~bash\nread -r answer\n~~~\n")


def test_the_newest_study_is_meant(run):
    folder = run(
        """\
        ~~~bash
        mkdir -p runs/my-study-20260101T000000Z runs/my-study-20260102T000000Z runs/other-20260103T000000Z
        touch runs/my-study-…/here
        ~~~
        ~~~python
        open("runs/my-study-…/there", "w").close()
        ~~~
        """
    )
    assert sorted(path.name for path in (folder / "runs" / "my-study-20260102T000000Z").iterdir()) == ["here", "there"]


@pytest.mark.parametrize("commands", ["ls runs/my-study-…", "ls DIR …", "ls …  # any"])
def test_an_ellipsis_that_stands_for_nothing(run, commands):
    with pytest.raises(FailedError):
        run(f"~~~bash\n{commands}\n~~~\n")


def test_files_are_written_before_the_commands_that_take_them(run):
    folder = run('~~~python title="src/my_model.py"\nx = 1\n~~~\n~~~bash\ncd src && python -c "import my_model"\n~~~\n')
    assert (folder / "src" / "my_model.py").read_text() == "x = 1\n"
    with pytest.raises(FailedError, match="leads out of the folder"):
        run('~~~text title="../x"\n~~~\n')
    with pytest.raises(SyntaxError):
        run('~~~python title="b.py"\nx =\n~~~\n')


def test_python_goes_on_where_it_was(run):
    folder = run("~~~python\nx = 2\n~~~\n~~~bash\necho 3 >y\n~~~\n~~~python\nprint(x + int(open('y').read()))\n~~~\n")
    assert (folder / "y").exists()
    with pytest.raises(FailedError, match=r"page\.md:4: Python ended; it said(.|\n)*NameError"):
        run("~~~python\nx = 2\n~~~\n~~~python\ny\n~~~\n")


def test_yaml_is_a_spec_or_a_part_of_one(run):
    run("~~~yaml\nsearch: {method: tpe, objective: time_to_target}\n~~~\n")
    run("~~~yaml\nsearch: {method: factorised}\n~~~\n")
    run("~~~yaml\nname: a\nsweep: {num_gpus: [1, 2]}\n~~~\n")
    for wrong in ("serch: {method: tpe}", "train: {epoch: 1}", "train: {epochs: none}", "workload: {model: lent}"):
        with pytest.raises(SpecError):
            run(f"~~~yaml\n{wrong}\n~~~\n")


def test_what_is_not_run_is_not(run):
    assert not list(run("<!-- not run: a; instead: tests/a.py::test_a -->\n~~~bash\ntouch x\n~~~\n").iterdir())


def test_what_ran_before_is_not_run_again_unless_a_file_has_changed(run, tmp_path):
    (tmp_path / "folder" / "study.yaml").write_text("name: a\n")
    page = "<!-- ran before: touch x -->\n~~~bash\ntouch x     # this one\ntouch y\n~~~\n"
    assert sorted(path.name for path in run(page, [("touch x\n", "")]).iterdir()) == ["study.yaml", "y"]
    for text, printed in [
        (page, [("touch z\n", "")]),
        (page.replace("touch x     #", "touch xx    #"), [("touch x\n", "")]),
        ('~~~yaml title="study.yaml"\nname: b\n~~~\n' + page, [("touch x\n", "")]),
    ]:
        with pytest.raises(FailedError, match="touch x has not run before with these files"):
            run(text, printed)


def test_what_stays_in_the_foreground_answers_and_is_ended(run):
    port = free_port()
    said = f"<!-- in the background until: http://127.0.0.1:{port} -->"
    serve = f"python -m http.server --bind 127.0.0.1 {port}"
    folder = run(f"{said}\n~~~bash\n{serve}\n~~~\n~~~python\nfrom urllib.request import urlopen\n"
                 f"open('got', 'wb').write(urlopen('http://127.0.0.1:{port}').read())\n~~~\n")  # fmt: skip
    assert b"Directory listing" in (folder / "got").read_bytes()
    assert not listens(port)
    with pytest.raises(FailedError, match="does not answer"):
        run(f"{said}\n~~~bash\npython -m htp.server\n~~~\n")


SHOWN = """\
num_gpus (CPU)  batch  s to 0.95  test acc
             1     32      0.348     0.986

study:  …/runs/digits-quick-20261121T132357Z
"""
PRINTED = SHOWN.replace("0.95", "0.8").replace("0.986", "0.9").replace("digits-quick", "my-study")


def test_shown_output_has_the_headings_and_words_of_the_real_one():
    assert headings(SHOWN) == ["num_gpus (CPU)", "batch", "s to 0.95", "test acc"]
    assert headings("1  2  3\n") == headings("one  two\n") == headings("") == []
    assert not_shown(SHOWN, PRINTED) == []
    assert not_shown(SHOWN, PRINTED.replace("test acc", "accuracy")) == ["test acc"]
    assert not_shown("report: …/somewhere/else.html\n", "report: here/it.is\n") == []
    assert not_shown("A sentence of words\n", "A number of things\n") == ["sentence", "words"]


def test_shown_output_is_compared_with_the_block_before_it(run):
    run("~~~bash\necho all is well\n~~~\n~~~text\nall is well\n~~~\n")
    run("~~~text\n$ echo all is well\nall is well\n~~~\n")
    run('~~~text title="notes.txt"\nnobody prints this\n~~~\n')
    run("<!-- not output: another page's; instead: tests/a.py::test_a -->\n~~~text\nnobody prints this\n~~~\n")
    run("~~~bash\ntrue\n~~~\n<!-- not output: a drawing -->\n~~~text\nnobody prints this\n~~~\n")
    run("~~~bash\necho well\n~~~\n~~~bash\ntrue\n~~~\n<!-- the output of: echo well -->\n~~~text\nwell\n~~~\n")
    for wrong in (
        "~~~bash\necho all is well\n~~~\n~~~text\nsomething broke\n~~~\n",
        "~~~bash\necho all is well\n~~~\n\n<!-- more -->\n~~~text\nsomething broke\n~~~\n",
        "~~~text\n$ echo all is well\nsomething broke\n~~~\n",
        "<!-- the output of: echo none -->\n~~~text\nnone\n~~~\n",
        "~~~text\nnobody prints this\n~~~\n",
        "~~~bash\necho all is well\n~~~\nIt says:\n~~~text\nall is well\n~~~\n",
        "<!-- not run: a; instead: tests/a.py::test_a -->\n~~~bash\necho well\n~~~\n~~~text\nwell\n~~~\n",
    ):
        with pytest.raises(FailedError):
            run(wrong)


def test_the_repository_is_copied_so_that_nothing_lands_in_it(tmp_path):
    copy_repository(tmp_path)
    assert (tmp_path / "docs" / "running.md").read_bytes() == (REPOSITORY / "docs" / "running.md").read_bytes()
    assert not (tmp_path / "docs").is_symlink()
    assert os.access(tmp_path / "infra" / "local" / "cluster.sh", os.X_OK)
    assert (tmp_path / ".venv" / "bin" / "activate").exists()
    assert not (tmp_path / ".git").exists()
