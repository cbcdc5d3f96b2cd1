// Write a Lockstep trace from C++17: copy this header into your port. No dependencies.
//
//     lockstep::TraceWriter dump("port.safetensors", {{"dtype", "float32"}, {"tokens", "[1, 2]"}});
//     dump.add("model.layers.0.mlp", values, {1, 2, 64});                 // a vector of floats, or
//     dump.add("logits", pointer, 2 * 64 * sizeof(half), {1, 2, 64}, "F16");  // anything's bytes
//     dump.close();  // only now does the file appear; without it, as after an exception, nothing does
//
// "dtype" of the writer is what your port computes in, `dtype` of a tensor what its bytes are. Tensors
// are written as they come, so memory stays bounded. What a device holds must be copied to the host
// first. Mistakes throw std::runtime_error. The format: docs/parity/dump-format.md.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace lockstep {

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the format is little-endian: swap the bytes of each number on this machine"
#endif

// Text as a JSON string. It must be UTF-8, which is passed on as it is.
inline std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (unsigned char byte : text) {
        if (byte == '"' || byte == '\\') {
            out += '\\';
            out += static_cast<char>(byte);
        } else if (byte < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(byte));
            out += escape;
        } else {
            out += static_cast<char>(byte);
        }
    }
    return out + "\"";
}

inline std::string listed(const std::vector<std::int64_t>& numbers) {
    std::string out = "[";
    for (std::int64_t number : numbers) out += (out.size() > 1 ? ", " : "") + std::to_string(number);
    return out + "]";
}

class TraceWriter {
public:
    using Shape = std::vector<std::int64_t>;

    // The metadata is said of the whole; `tokens` is a JSON list, which `listed` makes.
    explicit TraceWriter(std::filesystem::path path, std::map<std::string, std::string> about = {})
        : path_(std::move(path)), bodies_(path_), whole_(path_), about_(std::move(about)) {
        auto now = std::chrono::steady_clock::now().time_since_epoch().count();
        auto unique = std::to_string(now) + "-" + std::to_string(reinterpret_cast<std::uintptr_t>(this));
        bodies_ += "." + unique + ".bodies.tmp";
        whole_ += "." + unique + ".whole.tmp";
        body_.open(bodies_, std::ios::binary | std::ios::trunc);
        check(body_, bodies_);
    }

    ~TraceWriter() { discard(); }

    // Add to the metadata what is known only later, such as "decoded".
    void say(const std::string& key, const std::string& value) { about_[key] = value; }

    void add(const std::string& name, const std::vector<float>& values, const Shape& shape) {
        add(name, values.data(), values.size() * sizeof(float), shape, "F32");
    }

    // Append one tensor, row by row. A refused tensor leaves the writer as it was.
    void add(const std::string& name, const void* data, std::size_t size, const Shape& shape,
             const std::string& dtype) {
        static const std::map<std::string, std::uint64_t> sizes = {
            {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4},
            {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};
        auto item = sizes.find(dtype);
        if (item == sizes.end()) throw std::runtime_error(name + ": no dtype is called " + dtype);
        std::uint64_t expected = item->second;
        for (std::int64_t count : shape) expected *= static_cast<std::uint64_t>(count);
        if (size != expected || std::any_of(shape.begin(), shape.end(), [](auto n) { return n < 0; }))
            throw std::runtime_error(name + ": " + std::to_string(size) + " bytes, but " + listed(shape) +
                                     " of " + dtype + " takes " + std::to_string(expected));
        if (name.empty() || name == "__metadata__" || !names_.insert(name).second)
            throw std::runtime_error("tensor '" + name + "' was written already, or is no name");
        body_.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
        check(body_, bodies_);
        header_ += "," + quoted(name) + ":{\"dtype\":" + quoted(dtype) + ",\"shape\":" + listed(shape) +
                   ",\"data_offsets\":[" + std::to_string(size_) + "," + std::to_string(size_ + size) + "]}";
        size_ += size;
    }

    // Put header and tensors together under the final name.
    void close() {
        body_.close();
        check(body_, bodies_);
        about_["format"] = "lockstep-trace";
        about_["version"] = "1";
        std::string header = "{\"__metadata__\":{";
        for (const auto& [key, value] : about_)
            header += (header.back() == '{' ? "" : ",") + quoted(key) + ":" + quoted(value);
        header += "}" + header_ + "}";
        header.append((8 - header.size() % 8) % 8, ' ');
        std::ofstream out(whole_, std::ios::binary | std::ios::trunc);
        for (int byte = 0; byte < 8; ++byte)
            out.put(static_cast<char>(static_cast<std::uint64_t>(header.size()) >> 8 * byte & 0xff));
        out << header;
        if (size_ != 0) out << std::ifstream(bodies_, std::ios::binary).rdbuf();
        out.close();
        check(out, whole_);
        if (std::filesystem::file_size(whole_) != 8 + header.size() + size_)
            throw std::runtime_error(whole_.string() + " was not written to its end");
        std::filesystem::rename(whole_, path_);
        discard();
    }

    // Give up: remove what was collected so far. Safe to call twice.
    void discard() noexcept {
        std::error_code ignored;
        if (body_.is_open()) body_.close();
        std::filesystem::remove(bodies_, ignored);
        std::filesystem::remove(whole_, ignored);
    }

private:
    template <class Stream>
    static void check(const Stream& stream, const std::filesystem::path& path) {
        if (!stream) throw std::runtime_error(path.string() + " cannot be written");
    }

    std::filesystem::path path_, bodies_, whole_;
    std::ofstream body_;
    std::map<std::string, std::string> about_;
    std::string header_;
    std::set<std::string> names_;
    std::uint64_t size_ = 0;
};

}  // namespace lockstep
