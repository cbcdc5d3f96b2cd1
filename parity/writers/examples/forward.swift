// A forward pass that dumps its taps as it goes. Run with Swift 6.0.3, as lockstep_dump.swift.
//     swiftc ../lockstep_dump.swift forward.swift -parse-as-library -o forward
//     ./forward out.safetensors
import Foundation

let vocabulary = 5, width = 4
let eps: Float = 1e-6

func table(_ i: Int, _ j: Int) -> Float { Float((7 * i + 3 * j) % 11 - 5) / 8 }
func gain(_ j: Int) -> Float { 1 + Float(j) / 4 }
func head(_ i: Int, _ j: Int) -> Float { Float((5 * i + 2 * j) % 7 - 3) / 4 }

func norm(_ row: [Float]) -> [Float] {
    let mean = row.reduce(0) { $0 + $1 * $1 } / Float(width)
    let scale = 1 / (mean + eps).squareRoot()
    return row.enumerated().map { $1 * scale * gain($0) }
}

func linear(_ row: [Float]) -> [Float] {
    (0..<vocabulary).map { i in row.enumerated().reduce(0) { $0 + $1.element * head(i, $1.offset) } }
}

func forward(_ tokens: [Int], trace: (String, [[Float]]) throws -> Void) rethrows -> [[Float]] {
    var rows = tokens.map { i in (0..<width).map { table(i, $0) } }
    try trace("model.embed_tokens", rows)
    rows = rows.map(norm)
    try trace("model.norm", rows)
    rows = rows.map(linear)
    try trace("logits", rows)
    return rows
}

@main
struct Main {
    static func main() throws {
        let tokens = [3, 1, 4, 1]
        let about = ["backend": "swift", "dtype": "float32", "tokens": "\(tokens)"]
        let dump = try TraceWriter(CommandLine.arguments[1], about)
        var step = ""
        func trace(_ name: String, _ rows: [[Float]]) throws {
            try dump.add(step + name, rows.flatMap { $0 }, [1, rows.count, rows[0].count])
        }
        let last = try forward(tokens, trace: trace).last!
        let decoded = last.firstIndex(of: last.max()!)!
        step = "step.1/"
        _ = try forward([decoded], trace: trace)
        dump.say("decoded", "[\(decoded)]")
        try dump.close()
    }
}
