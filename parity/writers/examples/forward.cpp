// A forward pass that dumps its taps as it goes:
//     g++ -std=c++17 -I.. forward.cpp -o forward && ./forward out.safetensors
#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>

#include "lockstep_dump.hpp"

constexpr int VOCABULARY = 5, WIDTH = 4;
constexpr float EPS = 1e-6f;

using Rows = std::vector<float>;  // row-major
using Trace = std::function<void(const std::string&, const Rows&, int width)>;

static float table(int i, int j) { return static_cast<float>((7 * i + 3 * j) % 11 - 5) / 8; }
static float gain(int j) { return 1 + static_cast<float>(j) / 4; }
static float head(int i, int j) { return static_cast<float>((5 * i + 2 * j) % 7 - 3) / 4; }

static Rows embed(const std::vector<std::int64_t>& tokens) {
    Rows out;
    for (auto token : tokens)
        for (int j = 0; j < WIDTH; ++j) out.push_back(table(static_cast<int>(token), j));
    return out;
}

static Rows norm(Rows x) {
    for (std::size_t row = 0; row < x.size(); row += WIDTH) {
        float sum = 0;
        for (int j = 0; j < WIDTH; ++j) sum += x[row + j] * x[row + j];
        float scale = 1 / std::sqrt(sum / WIDTH + EPS);
        for (int j = 0; j < WIDTH; ++j) x[row + j] *= scale * gain(j);
    }
    return x;
}

static Rows linear(const Rows& x) {
    Rows out;
    for (std::size_t row = 0; row < x.size(); row += WIDTH)
        for (int i = 0; i < VOCABULARY; ++i) {
            float sum = 0;
            for (int j = 0; j < WIDTH; ++j) sum += x[row + j] * head(i, j);
            out.push_back(sum);
        }
    return out;
}

static Rows forward(const std::vector<std::int64_t>& tokens, const Trace& trace) {
    Rows x = embed(tokens);
    trace("model.embed_tokens", x, WIDTH);
    x = norm(x);
    trace("model.norm", x, WIDTH);
    x = linear(x);
    trace("logits", x, VOCABULARY);
    return x;
}

int main(int, char** arguments) try {
    std::vector<std::int64_t> tokens = {3, 1, 4, 1};
    lockstep::TraceWriter dump(
        arguments[1],
        {{"backend", "c++"}, {"dtype", "float32"}, {"tokens", lockstep::listed(tokens)}});
    std::string step;
    auto trace = [&](const std::string& name, const Rows& x, int width) {
        dump.add(step + name, x, {1, static_cast<std::int64_t>(x.size()) / width, width});
    };
    Rows logits = forward(tokens, trace);
    auto last = logits.end() - VOCABULARY;
    std::vector<std::int64_t> decoded = {std::max_element(last, logits.end()) - last};
    step = "step.1/";
    forward(decoded, trace);
    dump.say("decoded", lockstep::listed(decoded));
    dump.close();
} catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
}
