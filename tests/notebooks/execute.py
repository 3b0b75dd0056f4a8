"""Run notebooks and write them back with their outputs, as the repository keeps them.

    python tests/notebooks/execute.py [notebooks/04_merges.ipynb …]

Widget views and widget state are taken out: what stays of a widget is its static twin, which needs no kernel.
"""

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
CELL_SECONDS = 120


def run(notebook: Any, *, folder: Path = NOTEBOOKS, parameters: dict[str, object] | None = None) -> Any:
    """The notebook with fresh outputs; ``parameters`` replace the cell tagged so."""
    for cell in notebook.cells:
        if parameters and "parameters" in cell.metadata.get("tags", []):
            cell.source = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
    client = NotebookClient(
        notebook, timeout=CELL_SECONDS, resources={"metadata": {"path": str(folder)}}, record_timing=False
    )
    client.execute()
    return notebook


def clean(notebook: Any) -> Any:
    """The notebook without what belongs to one run or one machine."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
    }
    for cell in notebook.cells:
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET_VIEW, None)
    return notebook


def main(names: list[str]) -> None:
    """Run and write back the named notebooks, or all."""
    for path in [Path(name) for name in names] or sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = clean(run(nbformat.read(path, as_version=4)))
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
        print(f"{path.name}: {sum(cell.cell_type == 'code' for cell in notebook.cells)} code cells")


if __name__ == "__main__":
    main(sys.argv[1:])
