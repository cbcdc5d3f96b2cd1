// Does with the C++ writer what the lines on standard input say; test_dump_writers.py writes them.
#include <iostream>
#include <memory>
#include <sstream>

#include "lockstep_dump.hpp"

static std::string unhex(const std::string& text) {
    std::string out;
    if (text == "-") return out;
    for (std::size_t at = 0; at < text.size(); at += 2)
        out += static_cast<char>(std::stoi(text.substr(at, 2), nullptr, 16));
    return out;
}

static lockstep::TraceWriter::Shape sizes(const std::string& text) {
    lockstep::TraceWriter::Shape out;
    std::istringstream parts(text == "-" ? "" : text);
    for (std::string part; std::getline(parts, part, ',');) out.push_back(std::stoll(part));
    return out;
}

int main() {
    std::map<std::string, std::string> about;
    std::unique_ptr<lockstep::TraceWriter> dump;
    std::string line, word, a, b, c, d;
    while (std::getline(std::cin, line)) {
        std::istringstream(line) >> word >> a >> b >> c >> d;
        try {
            if (word == "meta") about[unhex(a)] = unhex(b);
            if (word == "open") dump = std::make_unique<lockstep::TraceWriter>(unhex(a), about);
            if (word == "open") about.clear();
            if (word == "tensor") {
                std::string data = unhex(d);
                dump->add(unhex(a), data.data(), data.size(), sizes(c), b);
            }
            if (word == "floats") dump->add(unhex(a), std::vector<float>{0.1f, -0.5f}, {2});
            if (word == "close") dump->close();
            if (word == "drop") dump.reset();
        } catch (const std::exception& error) {
            std::cout << "refused " << error.what() << "\n";
        }
    }
}
