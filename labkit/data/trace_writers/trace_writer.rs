//! Writes a labkit trace: the stages of a GPT-2's forward pass, in one safetensors file, with no crate but std.
//!
//! Copy `TraceWriter` into an engine and call `add_f32` at each stage, `add_i64` for `input_ids`, `write` at the end.
//! `main` makes a trace of raw little-endian dumps, so that an engine which already writes those needs no change:
//!
//!     rustc --edition 2021 -O trace_writer.rs
//!     ./trace_writer OUT.safetensors ENGINE CONFIG.json < LIST
//!
//! where each line of LIST is a tap's name, F32 or I64, its sizes with commas between, and the dump's path:
//!
//!     input_ids I64 1,4 ids.bin
//!     h.0.ln_1 F32 1,4,768 ln1_0.bin

use std::fs::File;
use std::io::{self, BufRead, BufWriter, Write};

struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct TraceWriter {
    tensors: Vec<Tensor>,
}

impl TraceWriter {
    /// Keeps a copy of a stage's values, so that the engine may overwrite its buffer.
    fn add_f32(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.add(name, "F32", shape, bytes);
    }

    fn add_i64(&mut self, name: &str, shape: &[usize], values: &[i64]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.add(name, "I64", shape, bytes);
    }

    fn add(&mut self, name: &str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) {
        let size = if dtype == "I64" { 8 } else { 4 };
        assert_eq!(shape.iter().product::<usize>() * size, bytes.len(), "{name}: the values do not fill the shape");
        self.tensors.push(Tensor { name: name.to_string(), dtype, shape: shape.to_vec(), bytes });
    }

    /// The file: 8 bytes of header length, the header (JSON), every tensor's bytes.
    fn write(&self, path: &str, metadata: &[(&str, &str)]) -> io::Result<()> {
        let fields: Vec<String> = metadata.iter().map(|(key, value)| format!("{}:{}", quoted(key), quoted(value))).collect();
        let mut header = format!("{{\"__metadata__\":{{{}}}", fields.join(","));
        let mut offset = 0;
        for tensor in &self.tensors {
            let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            let end = offset + tensor.bytes.len();
            header += &format!(
                ",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{offset},{end}]}}",
                quoted(&tensor.name),
                tensor.dtype,
                shape.join(",")
            );
            offset = end;
        }
        header.push('}');
        while header.len() % 8 != 0 {
            header.push(' '); // so that the tensors are aligned
        }
        let mut out = BufWriter::new(File::create(path)?);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        for tensor in &self.tensors {
            out.write_all(&tensor.bytes)?;
        }
        out.flush()
    }
}

/// JSON text of a string.
fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if c < ' ' => json += &format!("\\u{:04x}", c as u32),
            c => json.push(c),
        }
    }
    json + "\""
}

fn run(arguments: &[String]) -> Result<usize, String> {
    let [_, out, engine, config] = arguments else {
        return Err("usage: trace_writer OUT.safetensors ENGINE CONFIG.json < LIST".to_string());
    };
    let config = std::fs::read_to_string(config).map_err(|error| format!("{config}: {error}"))?;
    let mut trace = TraceWriter::default();
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, dtype, sizes, path] = words[..] else {
            return Err(format!("not a name, a dtype, sizes and a path: {line:?}"));
        };
        let sizes: Result<Vec<usize>, _> = sizes.split(',').map(str::parse).collect();
        let shape = sizes.map_err(|error| format!("{line:?}: {error}"))?;
        let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
        match dtype {
            "F32" => {
                let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                trace.add_f32(name, &shape, &values.collect::<Vec<_>>());
            }
            "I64" => {
                let values = bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
                trace.add_i64(name, &shape, &values.collect::<Vec<_>>());
            }
            other => return Err(format!("{name}: {other} is neither F32 nor I64")),
        }
    }
    let metadata = [
        ("format", "labkit-trace"),
        ("version", "1"),
        ("engine", engine.as_str()),
        ("model_type", "gpt2"),
        ("config", config.as_str()),
        ("compute_dtype", "float32"),
        ("accumulate_dtype", "float32"),
        ("weight_dtype", "float32"),
        ("device", "cpu"),
    ];
    trace.write(out, &metadata).map_err(|error| format!("{out}: {error}"))?;
    Ok(trace.tensors.len())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match run(&arguments) {
        Ok(count) => println!("{}: {count} tensors", arguments[1]),
        Err(message) => {
            eprintln!("trace_writer: {message}");
            std::process::exit(2);
        }
    }
}
