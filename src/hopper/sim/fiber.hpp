// Stackful coroutines: the threads of a simulated cluster. Boost.Context where it is installed, else ucontext; both
// tell AddressSanitizer about the stack switch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace fa3::simulator {

class Fiber {
 public:
  /// `body` starts at the first resume(). It must not throw.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the body until it suspends or returns. Not from inside a fiber.
  void resume();
  /// From inside the body: back to resume().
  void suspend();
  /// The body has returned.
  bool done() const;

  /// "boost.context" or "ucontext".
  static const char* implementation();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fa3::simulator
