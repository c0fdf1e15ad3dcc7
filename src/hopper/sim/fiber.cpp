#include "hopper/sim/fiber.hpp"

#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define FA3_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FA3_ASAN 1
#endif
#endif
#if defined(FA3_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

// Boost's assembly switch does not know the sanitizer's fake stack, so sanitized builds take ucontext with the hooks
// below.
#if defined(FA3_WITH_BOOST_CONTEXT) && !defined(FA3_ASAN)
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#else
#include <ucontext.h>
#endif

namespace fa3::simulator {
namespace {

// Two accumulators, P and the call chain of an unoptimised, instrumented build fit many times over.
constexpr std::size_t stack_bytes = 256 * 1024;

}  // namespace

#if defined(FA3_WITH_BOOST_CONTEXT) && !defined(FA3_ASAN)

struct Fiber::State {
  std::function<void()> body;
  boost::context::fiber inside, outside;
  bool done = false;
};

Fiber::Fiber(std::function<void()> body) : state_(new State{std::move(body), {}, {}, false}) {
  static thread_local boost::context::pooled_fixedsize_stack stacks(stack_bytes);
  state_->inside =
      boost::context::fiber(std::allocator_arg, stacks, [state = state_.get()](boost::context::fiber&& outside) {
        state->outside = std::move(outside);
        state->body();
        state->done = true;
        return std::move(state->outside);
      });
}

Fiber::~Fiber() = default;
void Fiber::resume() { state_->inside = std::move(state_->inside).resume(); }
void Fiber::suspend() { state_->outside = std::move(state_->outside).resume(); }
const char* Fiber::implementation() { return "boost.context"; }

#else

struct Fiber::State {
  std::function<void()> body;
  std::unique_ptr<char[]> stack{new char[stack_bytes]};  // not touched before it is used
  ucontext_t inside, outside;
  bool done = false;
#if defined(FA3_ASAN)
  void* fake_stack = nullptr;  // of the side that is switched away from
  const void* outside_stack = nullptr;
  std::size_t outside_bytes = 0;
#endif

  void enter() {
#if defined(FA3_ASAN)
    void* saved = nullptr;
    __sanitizer_start_switch_fiber(&saved, stack.get(), stack_bytes);
    swapcontext(&outside, &inside);
    __sanitizer_finish_switch_fiber(saved, nullptr, nullptr);
#else
    swapcontext(&outside, &inside);
#endif
  }
  void leave() {
#if defined(FA3_ASAN)
    __sanitizer_start_switch_fiber(done ? nullptr : &fake_stack, outside_stack, outside_bytes);
    swapcontext(&inside, &outside);
    __sanitizer_finish_switch_fiber(fake_stack, &outside_stack, &outside_bytes);
#else
    swapcontext(&inside, &outside);
#endif
  }
  static void start(unsigned low, unsigned high) {
    auto* state = reinterpret_cast<State*>((std::uintptr_t(high) << 32) | low);
#if defined(FA3_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, &state->outside_stack, &state->outside_bytes);
#endif
    state->body();
    state->done = true;
    state->leave();
  }
};

Fiber::Fiber(std::function<void()> body) : state_(new State) {
  state_->body = std::move(body);
  getcontext(&state_->inside);
  state_->inside.uc_stack.ss_sp = state_->stack.get();
  state_->inside.uc_stack.ss_size = stack_bytes;
  state_->inside.uc_link = nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(state_.get());
  makecontext(&state_->inside, reinterpret_cast<void (*)()>(&State::start), 2, unsigned(address),
              unsigned(address >> 32));
}

Fiber::~Fiber() = default;
void Fiber::resume() { state_->enter(); }
void Fiber::suspend() { state_->leave(); }
const char* Fiber::implementation() { return "ucontext"; }

#endif

bool Fiber::done() const { return state_->done; }

}  // namespace fa3::simulator
