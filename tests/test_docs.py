"""What README and CHANGELOG say is there: commands, options, links, code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import tvm
from tvm import relax

import tvm_vibegemm
from tvm_vibegemm.cli import VERBS, group

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def shell_lines() -> list[list[str]]:
    lines = "\n".join(blocks("bash")).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_verbs_load_and_have_help(verb: str) -> None:
    command = group.get_command(click.Context(group), verb)
    assert command is not None and command.name == verb
    assert command.help


def test_commands_in_the_readme_are_commands() -> None:
    seen = set()
    for program, *words in shell_lines():
        seen.add(program)
        if program == "make":
            makefile = (ROOT / "Makefile").read_text()
            assert all(re.search(rf"^{word}:", makefile, re.MULTILINE) for word in words)
        elif program == "vibegemm":
            command = group.get_command(click.Context(group), words[0])
            assert command is not None, words
            command.make_context(words[0], words[1:])  # raises for an unknown option
    assert {"make", "vibegemm"} <= seen


def test_verbs_in_the_text_are_verbs() -> None:
    for name in ("README.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert set(re.findall(r"`vibegemm ([a-z]+)", text)) <= set(VERBS), name


def test_code_in_the_readme_is_python_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = relax.Var("x", relax.TensorType((16, 16), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, x))
        builder.emit_func_output(out)
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {"module": builder.get(), "target": target})


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    for link in links:
        if not link.startswith("https://"):
            assert (ROOT / link.partition("#")[0]).exists(), link


def test_version_is_in_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(tvm_vibegemm.__version__)}\b", changelog, re.MULTILINE)
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{tvm_vibegemm.__version__}"' in pyproject


def test_the_measured_section_has_its_marks() -> None:
    begin, end = README.index("<!-- measured:begin -->"), README.index("<!-- measured:end -->")
    assert begin < end


def test_public_names_are_there() -> None:
    for name in tvm_vibegemm.__all__:
        assert getattr(tvm_vibegemm, name) is not None
    with pytest.raises(AttributeError):
        tvm_vibegemm.nonsense  # noqa: B018
