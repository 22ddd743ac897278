"""What every page gets: links from names in code to the API, sharp pictures in their size, and its notebook to download."""

import re
import shutil
import struct
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.nodes import make_refnode

NAME = re.compile(r"[A-Za-z_][\w.]*")
ALONE = re.compile(r"([A-Za-z_][\w.]*)(\(.*\))?")


def index_of(app: Any, env: Any) -> None:
    """Index the objects of the API by each ending of their names that one object alone has."""
    app.known, objects = {}, env.domains["py"].objects
    for name, entry in objects.items():
        parts = name.split(".")
        for k in range(
            len(parts) - 1 if entry.objtype in ("method", "attribute", "property") else len(parts)
        ):
            app.known.setdefault(".".join(parts[k:]), set()).add(name)
    app.known = {end: found.pop() for end, found in app.known.items() if len(found) == 1}
    app.known |= {name: name for name in objects}


def link_names(app: Any, tree: Any, page: str) -> None:
    """Make links of the names in code of texts: a name alone, or with a dot or a capital within an expression."""
    objects = app.env.domains["py"].objects
    for code in list(tree.findall(nodes.literal)):
        text, around = code.astext(), [*parents(code)]
        if any(isinstance(node, nodes.title | nodes.reference) for node in around):
            continue
        ids = [node[0]["ids"][0] for node in around if node.tagname == "desc" and node[0]["ids"]]
        scopes = (
            [".".join(ids[0].split(".")[:k]) for k in range(len(ids[0].split(".")), 1, -1)] if ids else []
        )
        alone, start, parts = ALONE.fullmatch(text), 0, []
        for found in [alone] if alone else NAME.finditer(text):
            name = found[1] if alone else found[0]
            inside = [f"{scope}.{name}" for scope in scopes if f"{scope}.{name}" in objects]
            full = inside[0] if inside else app.known.get(name)
            if full is None or full in ids or not (alone or "." in name or name[0].isupper()):
                continue
            if objects[full].objtype == "module" and "." not in name:
                continue
            end = found.start() + len(name)
            parts += [nodes.Text(text[start : found.start()])] if found.start() > start else []
            target = objects[full]
            parts.append(
                make_refnode(app.builder, page, target.docname, target.node_id, nodes.Text(name), full)
            )
            start = end
        if parts:
            code[:] = [*parts, nodes.Text(text[start:])] if start < len(text) else parts


def parents(node: Any) -> Any:
    """Walk from a node to the root."""
    while (node := node.parent) is not None:
        yield node


def size_pictures(app: Any, tree: Any, page: str) -> None:
    """Show the pictures of notebooks, which have 200 pixels per inch, in half of their size."""
    for image in tree.findall(nodes.image):
        path = Path(app.srcdir) / image["uri"]
        if "jupyter_execute" in image["uri"] and path.suffix == ".png":
            image["width"] = f"{struct.unpack('>I', path.read_bytes()[16:20])[0] // 2}px"


def offer_notebook(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Put a link to the run notebook on its page."""
    notebook = Path(app.outdir).parent / "jupyter_execute" / f"{page}.ipynb"
    if tree is not None and notebook.exists():
        copy = Path(app.outdir) / f"{page}.ipynb"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(notebook, copy)
        link = f'<a class="notebook" href="{notebook.name}" download>notebook (.ipynb)</a>'
        context["body"] = link + context["body"]


def setup(app: Any) -> dict[str, bool]:
    """Sphinx asks for it."""
    app.connect("env-updated", index_of)
    app.connect("doctree-resolved", link_names)
    app.connect("doctree-resolved", size_pictures)
    app.connect("html-page-context", offer_notebook)
    return {"parallel_read_safe": True}
