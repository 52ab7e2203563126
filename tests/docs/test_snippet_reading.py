"""How pages are read, and that what is wrong in one is found."""

import textwrap

import pytest

from tests.support.snippet_words import command_problems, commands, is_spec_key, name_problems, span_commands, spec_keys
from tests.support.snippets import SnippetError, comment_spans, names_a_test, read_page
from tests.support.studies import REPOSITORY


def page(text):
    return read_page(textwrap.dedent(text), "page.md")


def block(text):
    (found,) = page(text).blocks
    return found


def test_a_block_has_its_language_title_text_and_line():
    found = block('# A page\n\n```yaml title="study.yaml"\nname: a\n\ntrain: {}\n```\nprose\n')
    assert (found.language, found.title, found.text) == ("yaml", "study.yaml", "name: a\n\ntrain: {}\n")
    assert found.line == 3
    assert found.said == {}


def test_blocks_in_lists_lose_their_indentation():
    assert block("* one\n\n  ```bash\n  cat <<E\n    b\n  E\n  ```\n").text == "cat <<E\n  b\nE\n"


def test_a_longer_fence_holds_a_shorter_one():
    assert block("````text\n```bash\nx\n```\n````\n").text == "```bash\nx\n```\n"
    assert block("~~~text\n```\n~~~\n").text == "```\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n```pyhton\n```\n", r"page.md:2: ```pyhton: write one of bash, "),
        ("```\nx\n```\n", r"page.md:1: ```: write one of"),
        ("```bash linenums=1\n```\n", r"at most a title"),
        ("x\n\n```bash\nls\n", r"page.md:3: a block that does not end"),
        ("<!-- not run: no daemon -->\n```bash\n```\n", r"page.md:2: `not run` needs a reason and a test"),
        ("<!-- not run: ; instead: tests/a.py::test_b -->\n```bash\n```\n", r"needs a reason and a test"),
        ("<!-- in the background until: http://x -->\n```yaml\n```\n", r"can't be said of yaml"),
        ("<!-- the output of: -->\n```text\n```\n", r"`the output of:` says nothing"),
        ("<!-- not run: a; instead: b -->\n\n```bash\n```\n", r"right before no block: one of `not run` in line 1"),
        ("<!-- the folder begins with: a study -->\n", r"page.md:1: a folder begins with"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(text, message):
    with pytest.raises(SnippetError, match=message):
        page(text)


def test_comments_before_a_block_are_of_that_block():
    first, second = page(
        """\
        <!-- the folder begins with: my-study, the repository -->
        <!-- in the background until: http://127.0.0.1:5000 -->
        <!-- not run: no daemon
        here; instead: tests/docs/test_snippet_reading.py::test_a, tests/docs/test_b.py::test_b -->
        ```bash
        docker ps
        ```
        ```bash
        ls
        ```
        """
    ).blocks
    assert first.not_run
    assert not first.is_run
    assert first.said["not run"].startswith("no daemon here; instead:")
    assert first.instead == ["tests/docs/test_snippet_reading.py::test_a", "tests/docs/test_b.py::test_b"]
    assert first.said["in the background until"] == "http://127.0.0.1:5000"
    assert second.said == {}
    assert second.is_run


def test_what_the_folder_begins_with():
    assert page("<!-- the folder begins with: my-study, the repository -->\n").begins_with == {
        "my-study",
        "the repository",
    }
    assert page("text\n").begins_with == set()
    assert page("says `<!-- the folder begins with: x -->`\n").begins_with == set()


def test_sessions_are_commands_and_their_output():
    found = block("```text\n$ scalestudy status a\nrunning\n$ ls\n```\n")
    assert found.is_session
    assert found.is_run
    assert (found.commands, found.shown) == ("scalestudy status a\nls\n", "running\n")
    assert not block("```text\ncosts 5 $ a\n```\n").is_run


def test_python_with_a_title_is_a_file():
    assert not block('```python title="my_model.py"\nx\n```\n').is_run
    assert block("```python\nx\n```\n").is_run


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("tests/docs/test_snippet_reading.py::test_sessions_are_commands_and_their_output", True),
        ("tests/docs/test_snippet_reading.py::test_there_is_none", False),
        ("tests/docs/test_snippet_reading.py::page", False),
        ("tests/docs/test_snippet_reading.py", False),
        ("tests/docs/test_none.py::test_a", False),
        ("orchestration/commands/cli.py::test_a", False),
    ],
)
def test_a_test_is_named_by_file_and_function(name, there):
    assert names_a_test(name, REPOSITORY) is there


def test_inline_code_has_lines_and_no_line_ends():
    found = page("a `b c` ``d ` e``\n```text\n`no`\n```\n`run\n--extend` `\\|`\n\n| `x` | `y` |\n<!-- `z` -->\n").spans
    assert [(span.text, span.line) for span in found] == [
        ("b c", 1), ("d ` e", 1), ("run --extend", 5), ("|", 6), ("x", 8), ("y", 8),
    ]  # fmt: skip


def test_comments_of_yaml_have_inline_code_too():
    text = "# Needs `scalestudy data\n#   fetch mnist`\n#   scalestudy plan NAME.yaml    shows it\nname: a  # `b`\n"
    assert [(span.text, span.line) for span in comment_spans(text)] == [
        ("scalestudy data fetch mnist", 1), ("scalestudy plan NAME.yaml", 3),
    ]  # fmt: skip


def test_commands_are_lists_of_words():
    text = """\
    export A=1 # one
    B=2 scalestudy run study.yaml \\
        --set 'train={epochs: 2,
    momentum: 0}' && ls | wc -l   # comment
    cat >f <<'EOF'
    not a command
    EOF
    cd a; ls
    """
    assert commands(textwrap.dedent(text)) == [
        ["export", "A=1"],
        ["scalestudy", "run", "study.yaml", "--set", "train={epochs: 2,\nmomentum: 0}"],
        ["ls"], ["wc", "-l"], ["cat", ">f", "<<EOF"], ["cd", "a"], ["ls"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("scalestudy run study.yaml --set train.epochs=3 --address auto --out=DIR", None),
        ("scalestudy data fetch fashion_mnist --from DIR", None),
        ("scalestudy submit study.yaml --no-wait [--env NAME]…", None),
        ("scalestudy --install-completion", None),
        ("scalestudy COMMAND --help", None),
        ("scalestudy … --anything", None),
        ("scalestudy rnu study.yaml", "scalestudy: has no command rnu"),
        ("scalestudy run study.yaml --adress auto", "scalestudy run: has no option --adress"),
        ("scalestudy data fecth mnist", "scalestudy data: has no command fecth"),
        ("scalestudy run s.yaml --set train.epoch=3", "--set train.epoch: a spec has no such key"),
        ("scalestudy plan digits-quick --set train.epochs=3 --set 'sweep.num_gpus=[1, …]'", None),
        ("scalestudy run digits-quick --set train.epochs=many", "run digits-quick --set train.epochs=many: "),
        ("python -m scalestudy statsu DIR", "scalestudy: has no command statsu"),
        ("ray job submit --working-dir . -- python -m scalestudy resum DIR", "scalestudy: has no command resum"),
        ("ray start --head --dashbord-host=127.0.0.1", "ray start: has no option --dashbord-host"),
        ("ray drain-node --address a --node-id b --reason c --reason-message d", None),
        ("ray drian-node", "ray: has no command drian-node"),
        ("python -m scalestudy.training --devices cpu,cpu --model lenet", None),
        (
            "torchrun --nproc_per_node 2 -m scalestudy.training --batchsize 64",
            "python -m scalestudy.training: has no option --batchsize",
        ),
        ("make demo TORCH_INDEX=x", None),
        ("make demp", "make demp: no such target"),
        ("docker build -f infra/docker/Dockerfile --target cpu --build-arg CPU_TORCH_INDEX=x .", None),
        ("docker build -f infra/docker/Dockerfile --target gpu .", "docker build --target gpu: the stages are"),
        ("docker build -f infra/docker/Dockerfile --build-arg TORCH=x .", "docker build --build-arg TORCH: no such"),
        ("docker build -f infra/docker/Dokerfile .", "infra/docker/Dokerfile: no such file"),
        ("kubectl apply -f infra/kuberay/rayjob.yaml", None),
        ("kubectl apply -f infra/kuberay/job.yaml", "infra/kuberay/job.yaml: no such file"),
        ("kubectl apply -f infra/mlflow/compose.yaml", "kubectl -f infra/mlflow/compose.yaml: is no manifest"),
        ("infra/local/cluster.sh start 2 2", None),
        ("infra/local/cluster.sh begin", "infra/local/cluster.sh: has no command begin"),
        ("infra/mlflow/server.sh backup DIR", None),
        ("infra/mlflow/server.sh bakcup DIR", "infra/mlflow/server.sh: has no command bakcup"),
    ],
)
def test_what_a_command_names_is_there(text, problem):
    found = [each for words in commands(text) for each in command_problems(words)]
    if problem is None:
        assert found == []
    else:
        (only,) = found
        assert problem in only


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("scalestudy ui", [["scalestudy", "ui"]]),
        ("run --extend", [["scalestudy", "run", "--extend"]]),
        ("A=… scalestudy run d2l-lenet", [["scalestudy", "run", "d2l-lenet"]]),
        ("scalestudy", []),
        ("docker run --rm image", []),
        ("num_gpus: [1, 2]", []),
        ("it's", []),
    ],
)
def test_commands_in_prose(text, found):
    assert span_commands(text) == found


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("train.gradient_sync: [ddp]", ["train.gradient_sync"]),
        ("search.py", []),
        ("orchestration/search.method", []),
        ("scalestudy.training.data.Splits", []),
        ("run --set tracking.uri=…", ["tracking.uri"]),
        ("train.optimizer.momentum", ["train.optimizer.momentum"]),
    ],
)
def test_spec_keys_in_prose(text, keys):
    assert spec_keys(text) == keys


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("from scalestudy import run_study; result = run_study('study.yaml')", None),
        ("from scalestudy import run_studies", "orchestration.run_studies"),
        ("from scalestudy.training.registry import MODELS, MODLES", "scalestudy.training.registry.MODLES"),
        ("scalestudy.training.gradient_sync.GradientSync", None),
        ("scalestudy.training.data.Splits.from_datasets", None),
        ("scalestudy.training.data.Split", "scalestudy.training.data.Split"),
        ("training.dat.Splits", "training.dat.Splits"),
        ("orchestration/sweep/sweep.py", None),
        ("tests/infra", None),
        ("tests/orchestration/test_my_search.py", None),
        ("orchestration/swep.py", "orchestration/swep.py"),
        ("search.py", None),
    ],
)
def test_names_in_prose(text, problem):
    assert [found.partition(":")[0] for found in name_problems(text)] == ([problem] if problem else [])


@pytest.mark.parametrize(
    ("key", "there"),
    [
        ("train.epochs", True),
        ("train.epoch", False),
        ("train.optimizer.momentum", True),
        ("train.optimizer.momentun", False),
        ("train.epochs.more", False),
        ("workload.model_args.units", True),
        ("sweep.points", True),
        ("sweep.train.gradient_sync", True),
        ("sweep.batch", False),
        ("storage", True),
        ("strage", False),
        ("limits.trial_minutes", True),
        ("limits.trial_hours", False),
        ("targets.price_per_gpu_hour", True),
    ],
)
def test_keys_of_a_spec(key, there):
    assert is_spec_key(key) is there
