//! Does with the Rust writer what the lines on standard input say; test_dump_writers.py writes them.
#[path = "../../../parity/writers/lockstep_dump.rs"]
mod lockstep_dump;

use lockstep_dump::TraceWriter;
use std::io::{self, BufRead};

fn unhex(text: &str) -> Vec<u8> {
    let text = if text == "-" { "" } else { text };
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn words(text: &str) -> String {
    String::from_utf8(unhex(text)).unwrap()
}

fn sizes(text: &str) -> io::Result<Vec<usize>> {
    let number = |part: &str| part.parse().map_err(|error| io::Error::new(io::ErrorKind::Other, error));
    text.split(',').filter(|part| *part != "-").map(number).collect()
}

fn act(line: &str, about: &mut Vec<(String, String)>, dump: &mut Option<TraceWriter>) -> io::Result<()> {
    let parts: Vec<&str> = line.split(' ').collect();
    match parts[0] {
        "meta" => about.push((words(parts[1]), words(parts[2]))),
        "open" => {
            let said: Vec<(&str, &str)> = about.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            *dump = Some(TraceWriter::new(words(parts[1]), &said)?);
            about.clear();
        }
        "tensor" => {
            let (name, data) = (words(parts[1]), unhex(parts[4]));
            dump.as_mut().unwrap().add(&name, &data, &sizes(parts[3])?, parts[2])?;
        }
        "floats" => dump.as_mut().unwrap().add_f32(&words(parts[1]), &[0.1, -0.5], &[2])?,
        "close" => dump.take().unwrap().close()?,
        _ => drop(dump.take()),
    }
    Ok(())
}

fn main() {
    let (mut about, mut dump) = (Vec::new(), None);
    for line in io::stdin().lock().lines() {
        if let Err(error) = act(&line.unwrap(), &mut about, &mut dump) {
            println!("refused {error}");
        }
    }
}
