"""`python -m tests.docs.count`: a figure for each way in which snippets are tested."""

from tests.docs.count import COLUMNS, counts, lines
from tests.docs.pages import page_names
from tests.support.snippets import read_page

PAGE = """\
Type `scalestudy plan SPEC`; `train.epochs` counts; `else` does not.

~~~yaml title="study.yaml"
name: a
~~~
~~~bash
scalestudy plan study.yaml && ls
~~~
~~~text
1 trial
~~~
~~~python
import training
~~~
<!-- not run: no daemon; instead: tests/docs/test_count.py::test_a_page_is_counted -->
~~~bash
docker ps
~~~
~~~text
of what was not run
~~~
"""


def test_a_page_is_counted():
    found = dict(zip(COLUMNS[1:], counts(read_page(PAGE, "page.md")), strict=True))
    assert found == {"blocks": 6, "commands run": 2, "specs": 1, "files": 1, "python run": 1, "outputs": 1,
                     "inline": 2, "not run": 1}  # fmt: skip


def test_the_table_has_every_page_and_their_sums():
    head, *rows = list(lines())
    assert head.split() == " ".join(COLUMNS).split()
    assert [row.split()[0] for row in rows[: len(page_names())]] == page_names()
    sums = rows[len(page_names())].split()
    assert sums[0] == "together"
    assert rows[len(page_names()) + 1] == ""
    assert len(rows) - len(page_names()) - 2 == int(sums[-1])  # a line for each block that is not run
