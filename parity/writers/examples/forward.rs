//! A forward pass that dumps its taps as it goes: rustc -O forward.rs && ./forward out.safetensors
#[path = "../lockstep_dump.rs"]
mod lockstep_dump;

use lockstep_dump::{listed, TraceWriter};
use std::io;

const VOCABULARY: usize = 5;
const WIDTH: usize = 4;
const EPS: f32 = 1e-6;

fn table(i: usize, j: usize) -> f32 {
    ((7 * i + 3 * j) % 11) as f32 / 8.0 - 0.625
}

fn gain(j: usize) -> f32 {
    1.0 + j as f32 / 4.0
}

fn head(i: usize, j: usize) -> f32 {
    ((5 * i + 2 * j) % 7) as f32 / 4.0 - 0.75
}

fn norm(row: &[f32]) -> Vec<f32> {
    let mean = row.iter().map(|x| x * x).sum::<f32>() / WIDTH as f32;
    let scale = 1.0 / (mean + EPS).sqrt();
    row.iter().enumerate().map(|(j, x)| x * scale * gain(j)).collect()
}

fn linear(row: &[f32]) -> Vec<f32> {
    let dot = |i| row.iter().enumerate().map(|(j, x)| x * head(i, j)).sum();
    (0..VOCABULARY).map(dot).collect()
}

type Rows = Vec<f32>; // row-major

fn forward<T>(tokens: &[usize], mut trace: T) -> io::Result<Rows>
where
    T: FnMut(&str, &Rows, usize) -> io::Result<()>,
{
    let x: Rows = tokens.iter().flat_map(|&i| (0..WIDTH).map(move |j| table(i, j))).collect();
    trace("model.embed_tokens", &x, WIDTH)?;
    let x: Rows = x.chunks(WIDTH).flat_map(norm).collect();
    trace("model.norm", &x, WIDTH)?;
    let x: Rows = x.chunks(WIDTH).flat_map(linear).collect();
    trace("logits", &x, VOCABULARY)?;
    Ok(x)
}

fn main() -> io::Result<()> {
    let tokens = [3, 1, 4, 1];
    let path = std::env::args().nth(1).expect("the file to write");
    let ids = listed(&tokens);
    let about = [("backend", "rust"), ("dtype", "float32"), ("tokens", ids.as_str())];
    let mut dump = TraceWriter::new(path, &about)?;
    let logits = forward(&tokens, |name, x, width| {
        dump.add_f32(name, x, &[1, x.len() / width, width])
    })?;
    let last = &logits[logits.len() - VOCABULARY..];
    let best = (0..VOCABULARY).max_by(|&i, &j| last[i].total_cmp(&last[j])).unwrap_or(0);
    forward(&[best], |name, x, width| dump.add_f32(&format!("step.1/{name}"), x, &[1, 1, width]))?;
    dump.say("decoded", &listed(&[best]));
    dump.close()
}
