"""Add links, sizes of pictures, fields of docstrings and notebooks to the pages of the site."""

import re
import shutil
import struct
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.util.nodes import make_refnode

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")
NAME = re.compile(r"([A-Za-z_][\w.]*)")
MEMBERS = ("method", "attribute", "property")


def name_files(app: Any, page: str, source: list[str]) -> None:
    """Replace links to files outside docs/ with their text and the name of the file."""
    docs = Path(app.srcdir).resolve()
    here = (docs / page).parent

    def named(link: re.Match) -> str:
        target = (here / link[2]).resolve()
        if target.is_relative_to(docs):
            return link[0]
        path = str(target.relative_to(docs.parent))
        return f"`{path}`" if link[1] == path else f"{link[1]} (`{path}`)"

    source[0] = LINK.sub(named, source[0])


def index_names(app: Any, env: Any) -> None:
    """Index the objects of the API by each ending of their names that only one object has."""
    found: dict[str, dict[str, str]] = {}
    for name, entry in env.domains["py"].objects.items():
        for k in range(name.count(".") + (entry.objtype not in MEMBERS)):
            found.setdefault(name.split(".", k)[-1], {})[entry.node_id] = name
    app.known = {end: min(names.values()) for end, names in found.items() if len(names) == 1}


def link_names(app: Any, tree: Any, page: str) -> None:
    """Link names in code to the API; in expressions, only names with a dot or a capital letter."""
    objects = app.env.domains["py"].objects
    for code in list(tree.findall(nodes.literal)):
        around = [code]
        while around[-1].parent is not None:
            around.append(around[-1].parent)
        if any(isinstance(node, nodes.title | nodes.reference) for node in around):
            continue
        own = next((n[0]["ids"][0] for n in around if isinstance(n, addnodes.desc) and n[0]["ids"]), "")
        parts: list[Any] = NAME.split(code.astext())
        is_alone = parts[0] == "" and parts[2:] and parts[2][:1] in ("", "(")
        for k in range(1, len(parts), 2):
            name = parts[k]
            if not (k == 1 and is_alone) and "." not in name and not name[0].isupper():
                continue
            places = (f"{own}.{name}", f"{own.rpartition('.')[0]}.{name}", app.known.get(name))
            full = next((place for place in places if place in objects), None)
            if full and objects[full].node_id != own and (objects[full].objtype != "module" or "." in name):
                to, node_id = objects[full][:2]
                parts[k] = make_refnode(app.builder, page, to, node_id, nodes.Text(name), full)
        code[:] = [nodes.Text(part) if isinstance(part, str) else part for part in parts]


def finish(app: Any, tree: Any, page: str) -> None:
    """Show fields of docstrings as `name : type`, and pictures of notebooks at half size."""
    for line in [line for field in tree.findall(nodes.field) for line in field.findall(nodes.paragraph)]:
        if line and isinstance(line[0], nodes.strong | addnodes.literal_strong):
            for k, said in enumerate(line):
                text = str(said).lstrip(")") if isinstance(said, nodes.Text) else None
                if text is not None and text.startswith(" -- "):
                    line[k : k + 1] = [nodes.raw("", "<br>", format="html"), nodes.Text(text[4:])]
                    break
                if text in ("", " ("):
                    line[k] = nodes.Text(text and " : ")
    for image in tree.findall(nodes.image):
        path = Path(app.srcdir) / image["uri"]
        if "jupyter_execute" in image["uri"] and path.suffix == ".png":
            image["width"] = f"{struct.unpack('>I', path.read_bytes()[16:20])[0] // 2}px"


def offer_notebook(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Put a link to the executed notebook on its page."""
    notebook = Path(app.outdir).parent / "jupyter_execute" / f"{page}.ipynb"
    if tree is not None and notebook.exists():
        copy = Path(app.outdir) / f"{page}.ipynb"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(notebook, copy)
        context["body"] = f'<a class="notebook" href="{copy.name}" download>.ipynb</a>{context["body"]}'


def setup(app: Any) -> dict[str, bool]:
    """Sphinx asks for it."""
    app.connect("source-read", name_files)
    app.connect("env-updated", index_names)
    app.connect("doctree-resolved", link_names)
    app.connect("doctree-resolved", finish)
    app.connect("html-page-context", offer_notebook)
    return {"parallel_read_safe": True}
