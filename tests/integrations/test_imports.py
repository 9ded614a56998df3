"""No circular imports among the modules of integrations, those inside functions included."""

import ast
from pathlib import Path

import joformer.integrations

ROOT = Path(joformer.integrations.__file__).parent
PACKAGE = "joformer.integrations"


def names(root: Path) -> dict[str, Path]:
    """The modules of a package, by their full names."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join((PACKAGE, *(part for part in parts if part != "__init__")))] = path
    return found


def imports(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Who imports whom; `from package import name` is an import of the module `package.name` where there is one."""
    found = {}
    for name, path in modules.items():
        theirs = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                theirs.update(one if one in modules else node.module for one in inner)
            elif isinstance(node, ast.Import):
                theirs.update(alias.name for alias in node.names)
        found[name] = theirs & modules.keys() - {name}
    return found


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The modules that are left when those that import none of the others are taken away, again and again."""
    left = dict(graph)
    while free := [name for name, theirs in left.items() if not theirs & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


def test_no_module_imports_itself_on_a_detour():
    graph = imports(names(ROOT))
    assert len(graph) > 15
    assert sum(map(len, graph.values())) > 40
    assert cycle(graph) == []


def test_an_import_inside_a_function_counts(tmp_path):
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "one.py").write_text("from joformer.integrations import two\n")
    (tmp_path / "two.py").write_text("import torch\n")
    assert cycle(imports(names(tmp_path))) == []
    (tmp_path / "two.py").write_text("def f():\n    from joformer.integrations.one import g\n")
    assert cycle(imports(names(tmp_path))) == [f"{PACKAGE}.one", f"{PACKAGE}.two"]
