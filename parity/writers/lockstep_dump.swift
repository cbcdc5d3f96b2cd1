// Write a Lockstep trace from Swift: copy this file into your port. Foundation alone.
//
// Right to the bit with Swift 6.0.3 on Linux. The tests run it where there is a compiler, but fetch
// none, so with yours nobody may have: `lockstep dump validate` says whether what it writes is right.
//
//     let dump = try TraceWriter("port.safetensors", ["dtype": "float32", "tokens": "[1, 2]"])
//     try dump.add("model.layers.0.mlp", values, [1, 2, 64])                  // [Float], or
//     try dump.add("logits", data, [1, 2, 64], dtype: "BF16")                 // Data
//     try dump.close()  // only now does the file appear; call discard() to give up
//
// With MLX: eval(x) first, then x.asArray(Float.self), or x.asData().data for what is contiguous.
// Tensors are written as they come, so memory stays bounded. The format: docs/parity/dump-format.md.
import Foundation

public struct TraceMistake: Error, CustomStringConvertible {
    public let description: String
}

public final class TraceWriter {
    static let sizes = [
        "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4,
        "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    ]
    let path: URL, bodies: URL, whole: URL
    let body: FileHandle
    var about: [String: String]
    var header = ""
    var names: Set = [Data(), Data("__metadata__".utf8)]
    var size = 0

    /// Begin a trace; the metadata is said of the whole, and `tokens` is a JSON list.
    public init(_ path: String, _ about: [String: String] = [:]) throws {
        let unique = UUID().uuidString
        self.path = URL(fileURLWithPath: path)
        bodies = URL(fileURLWithPath: "\(path).\(unique).bodies.tmp")
        whole = URL(fileURLWithPath: "\(path).\(unique).whole.tmp")
        self.about = about
        try Data().write(to: bodies)
        body = try FileHandle(forWritingTo: bodies)
    }

    deinit { discard() }

    /// Add to the metadata what is known only later, such as "decoded".
    public func say(_ key: String, _ value: String) {
        about[key] = value
    }

    /// Append one tensor of 32-bit numbers, row by row.
    public func add(_ name: String, _ values: [Float], _ shape: [Int]) throws {
        var data = Data(capacity: 4 * values.count)
        for value in values {
            withUnsafeBytes(of: value.bitPattern.littleEndian) { data.append(contentsOf: $0) }
        }
        try add(name, data, shape, dtype: "F32")
    }

    /// Append one tensor as little-endian bytes. A refused tensor leaves the writer as it was.
    public func add(_ name: String, _ data: Data, _ shape: [Int], dtype: String) throws {
        guard let item = Self.sizes[dtype] else {
            throw TraceMistake(description: "\(name): no dtype is called \(dtype)")
        }
        let expected = shape.reduce(item, *)
        guard data.count == expected, shape.allSatisfy({ $0 >= 0 }) else {
            let what = "\(data.count) bytes, but \(shape) of \(dtype) takes \(expected)"
            throw TraceMistake(description: "\(name): \(what)")
        }
        // As bytes: Swift takes two spellings of a letter for one text, which the format does not.
        guard names.insert(Data(name.utf8)).inserted else {
            throw TraceMistake(description: "tensor '\(name)' was written already, or is no name")
        }
        try body.write(contentsOf: data)
        let sizes = shape.map(String.init).joined(separator: ",")
        header += ",\(quoted(name)):{\"dtype\":\"\(dtype)\",\"shape\":[\(sizes)],"
        header += "\"data_offsets\":[\(size),\(size + data.count)]}"
        size += data.count
    }

    /// Put header and tensors together under the final name.
    public func close() throws {
        try body.close()
        let said = about.merging(["format": "lockstep-trace", "version": "1"]) { _, own in own }
        let pairs = said.sorted { $0.key < $1.key }.map { quoted($0.key) + ":" + quoted($0.value) }
        let start = "{\"__metadata__\":{" + pairs.joined(separator: ",") + "}"
        var text = Data((start + header + "}").utf8)
        text.append(Data(repeating: 0x20, count: (8 - text.count % 8) % 8))
        try withUnsafeBytes(of: UInt64(text.count).littleEndian) { Data($0) }.write(to: whole)
        let out = try FileHandle(forWritingTo: whole)
        try out.seekToEnd()
        try out.write(contentsOf: text)
        let from = try FileHandle(forReadingFrom: bodies)
        while let piece = try from.read(upToCount: 1 << 20), !piece.isEmpty {
            try out.write(contentsOf: piece)
        }
        try from.close()
        try out.synchronize()
        try out.close()
        // rename replaces what is there in one step; FileManager's moveItem refuses to.
        guard rename(whole.path, path.path) == 0 else {
            throw TraceMistake(description: "\(path.path) cannot be written")
        }
        discard()
    }

    /// Give up: remove what was collected so far. Safe to call twice.
    public func discard() {
        try? body.close()
        try? FileManager.default.removeItem(at: bodies)
        try? FileManager.default.removeItem(at: whole)
    }
}

/// Text as a JSON string.
func quoted(_ text: String) -> String {
    var out = "\""
    for letter in text.unicodeScalars {
        if letter == "\"" || letter == "\\" {
            out += "\\"
        }
        if letter.value < 0x20 {
            out += String(format: "\\u%04x", letter.value)
        } else {
            out.unicodeScalars.append(letter)
        }
    }
    return out + "\""
}
