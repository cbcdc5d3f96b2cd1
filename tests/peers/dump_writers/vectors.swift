// Does with the Swift writer what the lines on standard input say; test_dump_writers.py writes them.
//     swiftc parity/writers/lockstep_dump.swift tests/peers/dump_writers/vectors.swift -parse-as-library
import Foundation

struct Refused: Error {}

func unhex(_ text: String) -> Data {
    let letters = text == "-" ? [] : Array(text)
    return Data(stride(from: 0, to: letters.count, by: 2).map { UInt8(String(letters[$0...$0 + 1]), radix: 16)! })
}

func words(_ text: String) -> String { String(decoding: unhex(text), as: UTF8.self) }

func sizes(_ text: String) throws -> [Int] {
    try text == "-" ? [] : text.split(separator: ",").map {
        guard let size = Int($0) else { throw Refused() }
        return size
    }
}

@main
struct Main {
    static func main() {
        var about: [String: String] = [:]
        var dump: TraceWriter?
        while let line = readLine() {
            do {
                try act(line.split(separator: " ").map(String.init), &about, &dump)
            } catch {
                print("refused \(error)")
            }
        }
    }

    static func act(_ line: [String], _ about: inout [String: String], _ dump: inout TraceWriter?) throws {
        switch line[0] {
        case "meta": about[words(line[1])] = words(line[2])
        case "open":
            dump = try TraceWriter(words(line[1]), about)
            about = [:]
        case "tensor": try dump!.add(words(line[1]), unhex(line[4]), sizes(line[3]), dtype: line[2])
        case "floats": try dump!.add(words(line[1]), [0.1, -0.5], [2])
        case "close":
            defer { dump = nil }
            try dump!.close()
        default: dump = nil
        }
    }
}
