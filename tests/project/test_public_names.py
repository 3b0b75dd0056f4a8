"""The public names are as listed, resolve, and cost nothing until used."""

import subprocess
import sys

import pytest

import labkit

EXPECTED = {
    "GPT2",
    "GPT2Config",
    "LabkitError",
    "Tokenizer",
    "__version__",
    "generate",
    "load_gpt2",
    "open_safetensors",
    "save_safetensors",
    "verify",
    "verify_callable",
}


def test_the_list_is_the_reality() -> None:
    assert set(labkit.__all__) == EXPECTED
    assert set(dir(labkit)) == EXPECTED
    for name in EXPECTED:
        assert getattr(labkit, name) is not None


def test_functions_are_functions_also_after_their_modules_were_imported() -> None:
    import labkit.generation
    import labkit.verification

    assert callable(labkit.generate)
    assert callable(labkit.verify)
    assert callable(labkit.generation.generate)
    assert labkit.verification.verify is labkit.verify


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"public names: .*load_gpt2"):
        labkit.load_gtp2  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "import labkit",
        "import labkit.storage; labkit.storage.read_header",
        "import labkit; labkit.Tokenizer.from_folder(labkit.__path__[0] + '/data/tiny').encode('a b')",
        "from labkit.cli.main import run; run(['info', __import__('labkit').__path__[0] + '/data/tiny/model.safetensors'])",
    ],
    ids=["labkit", "storage", "tokenizer", "info"],
)
def test_light_things_load_neither_torch_nor_matplotlib(code: str) -> None:
    check = "; import sys; heavy = {'torch', 'matplotlib', 'transformers', 'IPython'} & set(sys.modules); assert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
