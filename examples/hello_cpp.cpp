// hello_cpp.cpp: the same in C++17: handles that free themselves, errors as exceptions.
//
//   c++ -std=c++17 hello_cpp.cpp $(pkg-config --cflags --libs hybridllm) && ./a.out models/tiny-relu2-q8_0.gguf "In the beginning"
#include "hybrid_llm.h"

#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

template <auto destroy> struct Free {
    template <typename T> void operator()(T *handle) const { destroy(handle); }
};
using Runtime = std::unique_ptr<hllm_runtime, Free<hllm_runtime_free>>;
using Model   = std::unique_ptr<hllm_model, Free<hllm_model_free>>;
using Engine  = std::unique_ptr<hllm_engine, Free<hllm_engine_free>>;
using Session = std::unique_ptr<hllm_session, Free<hllm_session_free>>;

// Throws the error text of the handle that was the call's first argument.
template <typename T> void check(hllm_status rc, const T *handle, size_t (*last_error)(const T *, char *, size_t))
{
    if (rc == HLLM_OK) return;
    std::string text(last_error(handle, nullptr, 0), '\0');
    last_error(handle, text.data(), text.size());
    throw std::runtime_error(std::string(hllm_status_name(rc)) + ": " + text.c_str());
}

// A new handle: call(out) fills it in, and its error is on `parent`.
template <typename Owner, typename T, typename Call>
Owner make(Call call, const T *parent, size_t (*last_error)(const T *, char *, size_t))
{
    typename Owner::pointer out = nullptr;
    check(call(&out), parent, last_error);
    return Owner(out);
}

static Runtime new_runtime()
{
    hllm_runtime *rt = nullptr;
    if (hllm_runtime_create(nullptr, &rt) != HLLM_OK) throw std::runtime_error("no runtime");
    return Runtime(rt);
}

int main(int argc, char **argv)
try {
    const char *path = argc > 1 ? argv[1] : "models/tiny-relu2-q8_0.gguf";
    const std::string prompt = argc > 2 ? argv[2] : "In the beginning";
    Runtime rt = new_runtime();
    Model model = make<Model>([&](hllm_model **out) { return hllm_model_open(rt.get(), path, nullptr, out); }, rt.get(), hllm_runtime_last_error);
    Engine engine = make<Engine>([&](hllm_engine **out) { return hllm_engine_create(model.get(), nullptr, out); }, model.get(), hllm_model_last_error);
    Session session = make<Session>([&](hllm_session **out) { return hllm_session_create(engine.get(), nullptr, out); }, engine.get(),
                                    hllm_engine_last_error);
    hllm_generate_options opt{};
    opt.struct_size = sizeof opt;
    opt.max_tokens = 60;
    opt.temperature = 0.7f;
    opt.top_p = 0.9f;
    opt.repeat_penalty = 1.1f;
    opt.seed = 1;
    check(hllm_generate_start(session.get(), prompt.data(), prompt.size(), &opt), session.get(), hllm_session_last_error);
    hllm_poll_result poll{};
    poll.struct_size = sizeof poll;
    while (poll.run != HLLM_RUN_DONE) {
        char text[256];
        check(hllm_generate_poll(session.get(), -1, text, sizeof text, &poll), session.get(), hllm_session_last_error);
        std::cout.write(text, static_cast<std::streamsize>(poll.text_bytes)).flush();
    }
    if (poll.finish == HLLM_FINISH_ERROR) check(poll.error, session.get(), hllm_session_last_error);
    std::cout << '\n';
    return 0;
} catch (const std::exception &e) {
    std::cerr << "hello_cpp: " << e.what() << '\n';
    return 1;
}
