"""The names that labkit.storage exports are those it says, and each is there."""

import labkit.storage


def test_exported_names() -> None:
    assert sorted(labkit.storage.__all__) == sorted(
        [
            "DTYPES",
            "Dtype",
            "Entry",
            "Header",
            "RULES",
            "RawTensor",
            "SafetensorsFile",
            "Snapshot",
            "StorageWarning",
            "load_safetensors",
            "open_safetensors",
            "open_snapshot",
            "read_header",
            "save_safetensors",
            "save_snapshot",
            "to_float32",
            "widen",
        ]
    )
    for name in labkit.storage.__all__:
        assert getattr(labkit.storage, name).__doc__ or name in ("DTYPES", "RULES")
    assert dir(labkit.storage) == sorted(labkit.storage.__all__)
