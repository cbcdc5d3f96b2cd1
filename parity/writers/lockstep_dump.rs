//! Write a Lockstep trace from Rust: copy this file into your port. Nothing but the standard library.
//!
//!     let mut dump = TraceWriter::new("port.safetensors", &[("dtype", "float32"), ("tokens", "[1, 2]")])?;
//!     dump.add_f32("model.layers.0.mlp", &values, &[1, 2, 64])?;      // numbers, or
//!     dump.add("logits", bytes, &[1, 2, 64], "F16")?;                 // little-endian bytes
//!     dump.close()?;  // only now does the file appear; a writer that is dropped leaves nothing
//!
//! `dtype` of the writer is what your port computes in, that of a tensor is what its bytes are. Tensors
//! are written as they come, so memory stays bounded. The format: docs/parity/dump-format.md.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Error, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

const SIZES: [(&str, usize); 11] = [
    ("F64", 8), ("F32", 4), ("F16", 2), ("BF16", 2), ("I64", 8), ("I32", 4),
    ("I16", 2), ("U16", 2), ("I8", 1), ("U8", 1), ("BOOL", 1),
];
static WRITERS: AtomicUsize = AtomicUsize::new(0);

pub struct TraceWriter {
    path: PathBuf,
    bodies: PathBuf,
    whole: PathBuf,
    body: BufWriter<File>,
    about: BTreeMap<String, String>,
    header: String,
    names: HashSet<String>,
    size: usize,
}

fn mistake(what: String) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}

/// Text as a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\0'..='\u{1f}' => out.push_str(&format!("\\u{:04x}", letter as u32)),
            _ => out.push(letter),
        }
    }
    out + "\""
}

/// A JSON list, as `tokens` and `decoded` want it.
pub fn listed<T: ToString>(numbers: &[T]) -> String {
    let texts: Vec<String> = numbers.iter().map(T::to_string).collect();
    format!("[{}]", texts.join(", "))
}

impl TraceWriter {
    /// Begin a trace; the metadata is said of the whole.
    pub fn new(path: impl AsRef<Path>, about: &[(&str, &str)]) -> io::Result<Self> {
        let path = path.as_ref().to_path_buf();
        let name = path.file_name().ok_or_else(|| mistake(format!("{path:?} names no file")))?;
        let count = WRITERS.fetch_add(1, Ordering::Relaxed);
        let beside = |kind: &str| {
            let unique = format!(".{}-{}.{}.tmp", std::process::id(), count, kind);
            let mut hidden = name.to_os_string();
            hidden.push(unique);
            path.with_file_name(hidden)
        };
        let (bodies, whole) = (beside("bodies"), beside("whole"));
        let body = BufWriter::new(File::create(&bodies)?);
        let (header, names) = (String::new(), HashSet::new());
        let mut made = Self { path, bodies, whole, body, about: BTreeMap::new(), header, names, size: 0 };
        about.iter().for_each(|(key, value)| made.say(key, value));
        Ok(made)
    }

    /// Add to the metadata what is known only later, such as `decoded`.
    pub fn say(&mut self, key: &str, value: &str) {
        self.about.insert(key.to_string(), value.to_string());
    }

    /// Append one tensor of 32-bit numbers, row by row.
    pub fn add_f32(&mut self, name: &str, values: &[f32], shape: &[usize]) -> io::Result<()> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.add(name, &bytes, shape, "F32")
    }

    /// Append one tensor as little-endian bytes. A refused tensor leaves the writer as it was.
    pub fn add(&mut self, name: &str, data: &[u8], shape: &[usize], dtype: &str) -> io::Result<()> {
        let item = SIZES.iter().find(|(tag, _)| *tag == dtype);
        let item = item.ok_or_else(|| mistake(format!("{name}: no dtype is called {dtype}")))?.1;
        let expected = item * shape.iter().product::<usize>();
        if data.len() != expected {
            let found = data.len();
            let what = format!("{name}: {found} bytes, but {shape:?} of {dtype} takes {expected}");
            return Err(mistake(what));
        }
        if name.is_empty() || name == "__metadata__" || !self.names.insert(name.to_string()) {
            return Err(mistake(format!("tensor {name:?} was written already, or is no name")));
        }
        self.body.write_all(data)?;
        let (begin, end) = (self.size, self.size + data.len());
        self.header += &format!(
            ",{}:{{\"dtype\":\"{dtype}\",\"shape\":{},\"data_offsets\":[{begin},{end}]}}",
            quoted(name),
            listed(shape)
        );
        self.size = end;
        Ok(())
    }

    /// Put header and tensors together under the final name.
    pub fn close(mut self) -> io::Result<()> {
        self.body.flush()?;
        self.say("format", "lockstep-trace");
        self.say("version", "1");
        let pair = |(key, value): (&String, &String)| format!("{}:{}", quoted(key), quoted(value));
        let pairs: Vec<String> = self.about.iter().map(pair).collect();
        let mut header = format!("{{\"__metadata__\":{{{}}}{}}}", pairs.join(","), self.header);
        header += &" ".repeat((8 - header.len() % 8) % 8);
        let mut out = File::create(&self.whole)?;
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        io::copy(&mut File::open(&self.bodies)?, &mut out)?;
        out.sync_all()?;
        fs::rename(&self.whole, &self.path)
    }
}

impl Drop for TraceWriter {
    /// Remove what was collected, whether the trace was closed or given up.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.bodies);
        let _ = fs::remove_file(&self.whole);
    }
}
