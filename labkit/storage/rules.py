"""Every rule of the reader, by the code that its ``FormatError`` carries. Codes are stable.

The same table stands in docs/storage.md; a test holds the two together.
"""

from collections.abc import Mapping

HEADER_CAP_NBYTES = 100_000_000
"""Longest header that is read, in bytes; safetensors' own limit, inclusive."""
MAX_DEPTH = 4
"""Deepest nesting of brackets that is parsed: object, entry, list, and one level more to name what is wrong there."""
MAX_NUMEL = 2**63 - 1
"""Most elements that torch and NumPy can index; zero dimensions are counted as one, so that order never matters."""
MAX_INTEGER = 2**64 - 1
"""Largest dimension or offset: the format's integers are unsigned 64-bit."""

RULES: Mapping[str, str] = {
    # the first eight bytes
    "prefix-short": "the file is shorter than the 8-byte header length",
    "header-empty": "the header length is 0, and an empty text is not a JSON object",
    "header-cap": "the header length is over 100,000,000 bytes",
    "header-length": "the header length is more than the bytes that follow it",
    "is-lfs-pointer": "a Git LFS pointer stands in place of the file",
    "is-html": "a web page stands in place of the file",
    "is-pickle": "a Python pickle stands in place of the file",
    "is-zip": "a ZIP archive (torch.save, numpy.savez) stands in place of the file",
    "is-gzip": "gzip-compressed data stands in place of the file",
    "is-zstd": "zstd-compressed data stands in place of the file",
    "is-gguf": "a GGUF file stands in place of the file",
    "is-npy": "a NumPy .npy file stands in place of the file",
    "is-hdf5": "an HDF5 file stands in place of the file",
    "is-json": "a bare JSON text stands in place of the file",
    # the header as a text
    "header-first-byte": "the header's first byte is not '{' (leading white space included)",
    "header-utf8": "the header is not UTF-8",
    "header-depth": "brackets nest deeper than any header's",
    "header-json": "the header is not JSON",
    "text-surrogate": "a string holds half a surrogate pair, so it is not Unicode text",
    # the header as an object
    "duplicate-name": "a tensor name, or __metadata__, stands twice",
    "duplicate-field": "a field stands twice in one entry",
    "duplicate-metadata-key": "a key stands twice in __metadata__",
    "metadata-type": "__metadata__ is not an object",
    "metadata-value": "a value in __metadata__ is not a string",
    "entry-type": "an entry is not an object",
    "entry-field-missing": "an entry lacks dtype, shape or data_offsets",
    "entry-field-unknown": "an entry has a field that the format does not know",
    # one entry's values
    "dtype-unknown": "the dtype is not one of the 22 codes",
    "shape-type": "the shape is not a list",
    "dimension": "a dimension is not a whole number from 0 to 2^64 - 1, written as plain digits",
    "shape-overflow": "the dimensions' product, zeros left out, is over 2^63 - 1",
    "offsets-type": "data_offsets is not a list of two",
    "offset": "an offset is not a whole number from 0 to 2^64 - 1, written as plain digits",
    "offsets-reversed": "the end offset is before the begin offset",
    "size-partial-byte": "4 or 6 bit elements do not fill whole bytes",
    "size-mismatch": "the byte range is not dtype times shape",
    # entries together, against the file
    "data-short": "a tensor ends beyond the file's data section",
    "layout-hole": "bytes between two tensors belong to none",
    "layout-overlap": "a tensor starts before the one in front of it ends",
    "data-trailing": "bytes after the last tensor belong to none",
    # snapshots: an index and its shards
    "index-json": "model.safetensors.index.json is not a JSON object in UTF-8",
    "index-duplicate": "a key stands twice in the index",
    "index-weight-map": "weight_map is missing, empty, or not a map of names to file names",
    "index-total-size": "metadata.total_size is not a whole number, or not the sum of the shards' tensors",
    "index-and-single": "model.safetensors stands beside an index that does not name it",
    "shard-path": "the index names a file outside the snapshot folder",
    "shard-missing": "a shard that the index or its file names promise is not there",
    "shard-absent-tensor": "the index places a tensor in a shard that does not hold it",
    "shard-unlisted-tensor": "a shard holds a tensor that the index does not list",
    "shard-duplicate": "a tensor stands in two shards",
    "shard-framework": "a shard's metadata claims another framework's weight layout",
}
"""What each code means, in the order in which the reader checks."""
