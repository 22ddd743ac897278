"""How `make docs` builds the site: Sphinx, MyST, notebooks run at build, and every warning an error."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1] / "src")  # of the notebooks' processes
os.environ["MATPLOTLIBRC"] = str(Path(__file__).parent / "_static" / "matplotlibrc")
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PYTHONWARNINGS"] = "ignore:IProgress"  # tqdm, of notebooks without widgets
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # most of a build is compiling
os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

from stochgp.version import __version__

project, author, copyright = "stochgp", "The stochgp developers", "The stochgp developers"
release = version = __version__
extensions = [
    "myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_codeautolink",
    "api", "docstrings", "pages",
]  # fmt: skip
exclude_patterns = ["_build", "_ext"]
root_doc = "index"
html_theme = "furo"
html_title = f"stochgp {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_merge_streams = True

default_role = "code"
smartquotes = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = napoleon_use_param = False
toc_object_entries_show_parents = "hide"
napoleon_custom_sections = [("Attributes", "params_style")]
python_maximum_signature_line_length = 88
