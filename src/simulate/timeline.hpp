// Timelines of a CTA: from the simulator's events or the GPU's stamps to a trace file, a picture, a drawing in text.
#pragma once

#include <string>
#include <vector>

#include "attention/stamps.hpp"
#include "hopper/sim/machine.hpp"

namespace fa3::simulator {

/// Joins events of the same track and name that touch, sorts by track and time.
std::vector<Event> merged(std::vector<Event> events);

/// Events from the stamps of a traced row on the GPU: `roles` consecutive blocks of attention::stamps_per_role, unused
/// ones zero. Times in cycles from the first stamp. A GEMM's event runs from its issue until its warpgroup has seen its
/// result.
std::vector<Event> events_of_stamps(const std::vector<attention::Stamp>& stamps, int roles);

/// Chrome trace event format (load in Perfetto or chrome://tracing); one microsecond stands for one cycle.
std::string chrome_trace(const std::vector<Event>& events);

/// The schedule between two times as a picture.
std::string svg(const std::vector<Event>& events, double begin, double end);

/// The schedule in characters, `cycles` each: the lines above attention/forward.hpp.
std::string text_drawing(const std::vector<Event>& events, double begin, double end, double cycles);

}  // namespace fa3::simulator
