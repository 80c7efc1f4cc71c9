"""The tests themselves: each says something that can be false, and no module needs another module of tests."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MODULES = sorted(TESTS.rglob("test_*.py"))
FILES = sorted(TESTS.rglob("*.py"))
PYTEST = {"pytest.raises", "pytest.warns", "pytest.fail"}
HELPERS = {
    "agrees",
    "check_bf16_errors",
    "check_errors",
    "close",
    "exact",
    "observe",
    "refused",
    "same",
    "typeset",
}  # of ours, which assert


@cache
def module(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(module(path)))


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    return (node for node in module(path).body if isinstance(node, ast.FunctionDef))


def asserts(function: ast.FunctionDef) -> bool:
    """Also by pytest, by torch.testing, by numpy.testing or by a helper of ours."""
    parts = list(ast.walk(function))
    calls = {ast.unparse(part.func) for part in parts if isinstance(part, ast.Call)}
    return (
        any(isinstance(part, ast.Assert) for part in parts)
        or not calls.isdisjoint(PYTEST | HELPERS)
        or any(".assert_" in call for call in calls)
    )


def cannot_fail(assertion: ast.Assert) -> bool:
    """Of a constant, of a tuple, of an alternative that is one, or of a thing and itself."""
    test = assertion.test
    alternatives = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]
    sides = [ast.unparse(side) for side in (test.left, *test.comparators)] if isinstance(test, ast.Compare) else []
    return any(isinstance(part, ast.Constant | ast.Tuple) for part in alternatives) or len(set(sides)) < len(sides)


def test_nothing_is_imported_from_a_module_of_tests() -> None:
    for path in FILES:
        names = [alias.name for node in nodes(path) if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module for node in nodes(path) if isinstance(node, ast.ImportFrom)]
        assert [name for name in names if name.rpartition(".")[2].startswith("test_")] == [], path


def test_every_test_asserts() -> None:
    for path in MODULES:
        tests = [function for function in functions(path) if function.name.startswith("test_")]
        assert tests, path
        assert [test.name for test in tests if not asserts(test)] == [], path


def test_every_helper_that_is_said_to_assert_does() -> None:
    known: dict[str, list[bool]] = {name: [] for name in HELPERS}
    for path in FILES:
        for function in functions(path):
            if function.name in HELPERS:
                known[function.name].append(asserts(function))
    assert {name for name, asserting in known.items() if not asserting or not all(asserting)} == set()


def test_no_assertion_is_true_whatever_happens() -> None:
    assertions = [(path, node) for path in MODULES for node in nodes(path) if isinstance(node, ast.Assert)]
    assert [(path, node.lineno) for path, node in assertions if cannot_fail(node)] == []


@pytest.mark.parametrize("text", ["True", "(x, 'said')", "x == x", "'a' == 'a'", "x or True", "1 == x == 1"])
def test_such_an_assertion_is_seen(text: str) -> None:
    assert cannot_fail(ast.parse(f"assert {text}").body[0])
    assert not cannot_fail(ast.parse("assert x == y or z, 'said'").body[0])


def test_no_exception_of_any_kind_is_expected() -> None:
    """`pytest.raises(Exception)` takes a misspelt name for what it waits for."""
    for path in MODULES:
        calls = [node for node in nodes(path) if isinstance(node, ast.Call)]
        expected = [ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func) == "pytest.raises"]
        assert {"Exception", "BaseException"}.isdisjoint(expected), path


def test_no_function_takes_the_name_of_another() -> None:
    """The second of two would run alone."""
    for path in MODULES:
        names = Counter(function.name for function in functions(path))
        assert [name for name, times in names.items() if times > 1] == [], path
