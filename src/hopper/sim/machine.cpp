#include "hopper/sim/machine.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "dtype.hpp"

namespace fa3::simulator {
namespace {

using std::string;
using std::to_string;

thread_local Cluster* current_cluster = nullptr;

constexpr int warp_threads = 32;
constexpr int warpgroup_threads = 128;
constexpr std::uint32_t chunk_bytes = 16, word_bytes = 4;
constexpr std::uint8_t any_swizzle = 1;  // of sent bytes, which are as threads have written them
// Where the plan begins in the shared window: the first kilobyte belongs to the system, as on the device.
constexpr std::uint32_t shared_base = 1024;
constexpr std::uint32_t poison_bits = 0x7fc0dead;  // a NaN no arithmetic produces

// Rates of the timed model, in cycles of an SM: m64nNk16 takes N / 2 cycles of its tensor cores, the special-function
// unit of each of its four sub-cores serves 4 lanes per cycle.
constexpr double product_cycles_per_column = 0.5;
constexpr double exp2_cycles = 8;
constexpr double load_latency = 700, load_bytes_per_cycle = 64, barrier_latency = 20, word_latency = 200;

/// mbarrier state in its 8 bytes: phase parity, arrivals expected per phase, arrivals pending, bytes pending (biased).
struct BarrierState {
  unsigned phase;
  int expected, pending, bytes;
  static constexpr int bias = 1 << 20;  // |tx-count| < 2^20

  static BarrierState of(std::uint64_t bits) {
    return {unsigned(bits >> 63), int(bits >> 43 & 0xfffff), int(bits >> 23 & 0xfffff), int(bits & 0x7fffff) - bias};
  }
  std::uint64_t bits() const {
    return std::uint64_t(phase) << 63 | std::uint64_t(expected) << 43 | std::uint64_t(pending) << 23 |
           std::uint64_t(bytes + bias);
  }
};

/// f32 values of all numbers of a type.
const std::vector<float>& values_of(hopper::Element element) {
  const auto table = [](unsigned count, auto convert) {
    std::vector<float> values(count);
    for (unsigned i = 0; i < count; ++i) values[i] = convert(i);
    return values;
  };
  static const std::vector<float> f16 = table(65536, [](unsigned bits) { return to_float(Half{std::uint16_t(bits)}); });
  static const std::vector<float> bf16 =
      table(65536, [](unsigned bits) { return to_float(Bfloat16{std::uint16_t(bits)}); });
  static const std::vector<float> e4m3 = table(256, [](unsigned bits) { return to_float(E4m3{std::uint8_t(bits)}); });
  switch (element) {
    case hopper::Element::f16: return f16;
    case hopper::Element::bf16: return bf16;
    case hopper::Element::e4m3: return e4m3;
  }
  std::abort();
}

/// A wgmma shared-memory descriptor, decoded. PTX ISA, "Matrix Descriptor Format".
struct Descriptor {
  std::uint32_t start, leading, stride;
  int swizzle_bytes;  // 0: none

  explicit Descriptor(std::uint64_t bits)
      : start(std::uint32_t(bits & 0x3fff) << 4),
        leading(std::uint32_t(bits >> 16 & 0x3fff) << 4),
        stride(std::uint32_t(bits >> 32 & 0x3fff) << 4) {
    constexpr int swizzles[] = {0, 128, 64, 32};
    swizzle_bytes = swizzles[bits >> 62];
  }
  /// Element (row, depth) of an operand that is contiguous along the depth; before the swizzle.
  std::uint32_t k_major(int row, int depth) const {
    return start + row / 8 * stride + row % 8 * swizzle_bytes + 2 * depth;
  }
  /// Element (depth, column) of an operand that is contiguous across the depth; before the swizzle.
  std::uint32_t n_major(int depth, int column) const {
    const int per_panel = swizzle_bytes / 2;
    return start + column / per_panel * leading + depth / 8 * stride + depth % 8 * swizzle_bytes +
           2 * (column % per_panel);
  }
};

}  // namespace

const char* name(Completion completion) {
  switch (completion) {
    case Completion::eager: return "eager";
    case Completion::lazy: return "lazy";
    case Completion::random: return "random";
    case Completion::timed: return "timed";
  }
  return "unknown";
}

Counters& Counters::operator+=(const Counters& other) {
  tma_load_bytes += other.tma_load_bytes;
  tma_store_bytes += other.tma_store_bytes;
  wgmma_a_bytes += other.wgmma_a_bytes;
  wgmma_b_bytes += other.wgmma_b_bytes;
  wgmma_instructions += other.wgmma_instructions;
  wgmma_flops += other.wgmma_flops;
  stmatrix_bytes += other.stmatrix_bytes;
  ldmatrix_bytes += other.ldmatrix_bytes;
  matrix_phases += other.matrix_phases;
  bank_conflicts += other.bank_conflicts;
  ordinary_bytes += other.ordinary_bytes;
  exp2 += other.exp2;
  return *this;
}

// ---- state
// -----------------------------------------------------------------------------------------------------------------

struct Cluster::Thread {
  int index = 0;  // in the cluster; so are its warp and warpgroup
  int rank = 0;   // of its CTA
  std::unique_ptr<Fiber> fiber;
  bool blocked = false, finished = false;
  string waits_for;                         // while blocked
  const std::uint64_t* waits_on = nullptr;  // the mbarrier, if it is one
  double time = 0;
  Clock clock;                                // what has happened before this point of the thread
  std::vector<std::uint32_t> unfenced_words;  // written since its last fence_async_shared
  Clock at_fence;                             // what had happened before that

  // Tensor core.
  bool fenced = false;              // wgmma.fence since the last wait
  std::size_t products = 0;         // issued by this thread
  std::vector<std::size_t> groups;  // committed: number of products issued up to then
  struct InFlight {
    void* d;
    std::vector<std::uint32_t> saved;  // its registers at the first issue
    std::size_t last;                  // 1 + index of the latest product on it
  };
  std::vector<InFlight> in_flight;

  // TMA stores.
  std::uint32_t stores = 0;                 // issued
  std::vector<std::uint32_t> store_groups;  // committed: number of stores issued up to then

  // Ordinary work since the last primitive that synchronises, for the trace.
  double compute_begin = 0;
  bool has_exp2 = false, has_convert = false;

  int lane() const { return index % warp_threads; }
  int warp() const { return index / warp_threads; }
  int warpgroup() const { return index / warpgroup_threads; }
};

/// Accumulators of products that have not all been read back, as one 64 x columns tile.
struct Cluster::Shadow {
  int columns = 0;
  bool f16 = false;
  std::vector<float> tile;
  int holders = 0;  // threads that still have it in flight

  /// Element i of those that thread t of the warpgroup holds.
  float* of(int t, int i) {
    const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * (t % 4) + i % 2;
    return &tile[std::size_t(row * columns + column)];
  }
};

struct Cluster::Product {
  hopper::Element element{};
  int columns = 0;
  bool accumulate = false;
  std::uint64_t a = 0, b = 0;
  bool f16_sums = false, a_in_registers = false, b_across = false, a_across = false;
  struct Need {
    std::size_t component;
    std::uint32_t count;  // must be known ..
    std::uint32_t write;  // .. or this, already at the thread's own fence_async_shared
    std::uint32_t chunk;
  };
  std::vector<Need> needs;  // what a thread must know to have happened when it issues this
  int block = -1;           // of B
  std::array<void*, warpgroup_threads> d{};
  std::array<const std::uint32_t*, warpgroup_threads> a_registers{};
  std::array<std::array<std::uint32_t, 4>, warpgroup_threads> a_at_issue{};
  int issued = 0;
  std::uint32_t id = 0;
  double ready = 0, finish = 0;
};

struct Cluster::Warpgroup {
  int index = 0;
  int rank = 0;  // of its CTA
  string role;   // for messages
  std::deque<Product> products;
  std::size_t first = 0;      // number of products dropped from the front
  std::size_t completed = 0;  // number of products completed
  double completed_time = 0;
  std::map<void*, Shadow> shadows;  // by the accumulator of the warpgroup's first thread
  std::vector<std::uint32_t> read;  // per chunk: 1 + index of the latest product that reads it
};

struct Cluster::Rendezvous {
  int arrived = 0;
  std::size_t generation = 0;
  string operation;
  double time = 0, released = 0;
  std::array<std::uint32_t, warp_threads> address{};
  std::array<std::uint32_t, warp_threads> exchanged{};
  std::array<std::array<std::uint32_t, 4>, warp_threads> fragment{};
  Clock arriving, known;             // of warp_sync, cta_sync and cluster_sync
  std::vector<int> register_counts;  // of a warp: by setmaxnreg, in order; the first is that of the launch
};

struct Cluster::NamedBarrierState {
  int expected = 0, arrived = 0;
  std::size_t generation = 0;
  std::vector<bool> seen;
  double time = 0, released = 0;
  Clock arriving, known;
};

/// What a CTA has for itself.
struct Cluster::Sm {
  int alive = 0;  // threads that have not returned
  Rendezvous all;
  std::array<NamedBarrierState, 16> named;
  int free_registers = 0;
  // By component of the threads' clocks: the count that must be known before the CTA ends, for peers have arrived or
  // count bytes on this barrier.
  struct Reach {
    std::uint32_t count;
    const std::uint64_t* barrier;
  };
  std::map<std::size_t, Reach> reached;

  // Timed model: when each unit is free again.
  double tensor_core_free = 0, tma_free = 0;
  std::array<double, 4> exp2_free{};
};

struct Cluster::Region {
  std::uint32_t offset;
  std::size_t bytes;
  string name;
  int block = -1;  // what TMA loaded last: first row / box rows
};

struct Cluster::Copy {
  enum class Kind { load, store, add, word, sent, bulk_load, bulk_add } kind;
  bool done = false;
  hopper::TensorMapSpec spec{};
  hopper::Coordinates at{};
  int block = 0;
  std::uint32_t word = 0;  // if it is one
  void* global = nullptr;  // of a bulk copy
  int length = 0;          // likewise, bytes
  std::uint32_t from = 0;  // of sent bytes: where they are, in the memory of the cluster
  int rank = 0;            // of the CTA that `address` and `barrier` belong to
  std::uint32_t address = 0;
  std::uint64_t* barrier = nullptr;
  std::uint32_t phase = 0;  // the barrier's count of completed phases says that this has landed
  int thread = 0;
  bool from_peer = false;    // the thread belongs to another CTA
  std::uint32_t number = 0;  // of a store: 1 + stores its thread issued before
  std::uint32_t id = 0;
  double finish = 0;
  bool bulk() const { return kind == Kind::bulk_load || kind == Kind::bulk_add || kind == Kind::sent; }
  bool stores() const { return kind == Kind::store || kind == Kind::add || kind == Kind::bulk_add; }
  bool loads() const { return kind == Kind::load || kind == Kind::bulk_load || kind == Kind::sent; }
  int bytes() const {
    return kind == Kind::word ? int(word_bytes) : bulk() ? length : int(spec.box_rows) * spec.swizzle_bytes;
  }
};

Cluster::Cluster(const Options& options, int index, int count, int threads, std::size_t shared_bytes, int ctas)
    : options_(options),
      first_(index),
      count_(count),
      cta_threads_(threads),
      shared_bytes_(shared_bytes),
      stride_(std::uint32_t(shared_bytes + 1023) / 1024 * 1024),
      storage_(std::size_t(ctas) * stride_ + 1024, std::byte(0xff)),
      random_(options.seed * 1000003 + std::uint64_t(index)) {
  if (threads <= 0 || threads % warpgroup_threads != 0)
    throw std::invalid_argument("threads must be a positive multiple of 128");
  if (index % ctas != 0 || count % ctas != 0) throw std::invalid_argument("a grid is a whole number of clusters");
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
  shared_ = storage_.data() + ((address + 1023) / 1024 * 1024 - address);
  chunks_.resize(std::size_t(ctas) * stride_ / chunk_bytes);
  words_.resize(chunks_.size() * (chunk_bytes / word_bytes));
  for (int rank = 0; rank < ctas; ++rank) {
    sms_.push_back(std::make_unique<Sm>());
    sms_.back()->alive = threads;
    for (NamedBarrierState& barrier : sms_.back()->named) barrier.seen.resize(std::size_t(threads));
  }
  for (int i = 0; i < ctas * threads; ++i) {
    threads_.push_back(std::make_unique<Thread>());
    threads_.back()->index = i;
    threads_.back()->rank = i / threads;
  }
  for (int i = 0; i < ctas * threads / warpgroup_threads; ++i) {
    warpgroups_.push_back(std::make_unique<Warpgroup>());
    warpgroups_.back()->index = i;
    warpgroups_.back()->rank = i * warpgroup_threads / threads;
    warpgroups_.back()->read.resize(chunks_.size());
  }
  // At entry every thread has the same share of the register file, in units of eight.
  const int registers = std::min(65536 / threads / 8 * 8, 248);
  for (int i = 0; i < ctas * threads / warp_threads; ++i) {
    warps_.push_back(std::make_unique<Rendezvous>());
    warps_.back()->register_counts = {registers};
  }
  all_ = std::make_unique<Rendezvous>();
  for (auto& thread : threads_) thread->clock.raise(accesses_of(thread->index), 1);
}

Cluster::~Cluster() = default;

Cluster& Cluster::current() { return *current_cluster; }

// ---- names and messages
// ----------------------------------------------------------------------------------------------------

Cluster::Sm& Cluster::sm() const { return *sms_[std::size_t(self().rank)]; }

/// Where an address of the CTA `rank` is in the memory of the cluster: CTA after CTA, without the system's part.
std::uint32_t Cluster::offset_of(int rank, std::uint32_t address) const {
  return std::uint32_t(rank) * stride_ + address - shared_base;
}

std::byte* Cluster::shared() const { return shared_ + (running_ ? std::uint32_t(rank()) * stride_ : 0); }

void Cluster::name_region(const void* object, std::size_t bytes, string region_name) {
  const auto offset = std::uint32_t(static_cast<const std::byte*>(object) - shared_);
  for (int rank = 0; rank < size(); ++rank)
    regions_.push_back({std::uint32_t(rank) * stride_ + offset, bytes, region_name + of_cta(rank), -1});
}

Cluster::Region* Cluster::region_at(std::uint32_t offset) {
  for (Region& region : regions_)
    if (offset >= region.offset && offset < region.offset + region.bytes) return &region;
  return nullptr;
}

/// For messages; nothing in a cluster of one.
string Cluster::of_cta(int rank) const { return size() == 1 ? "" : " of CTA " + to_string(first_ + rank); }

string Cluster::where(std::uint32_t offset) const {
  for (const Region& region : regions_)
    if (offset >= region.offset && offset < region.offset + region.bytes)
      return region.name + (region.block >= 0 ? " (block " + to_string(region.block) + ")" : "") + " + " +
             to_string(offset - region.offset);
  return "shared memory" + of_cta(rank_at(offset)) + " + " + to_string(offset % stride_);
}

string Cluster::barrier_name(const std::uint64_t& state) const {
  const auto offset = std::uint32_t(reinterpret_cast<const std::byte*>(&state) - shared_);
  for (const Region& region : regions_)
    if (offset >= region.offset && offset < region.offset + region.bytes) return region.name;
  return "mbarrier at " + where(offset);
}

void Cluster::name_warpgroup(int warpgroup, string role) {
  for (std::size_t i = std::size_t(warpgroup); i < warpgroups_.size();
       i += std::size_t(cta_threads_ / warpgroup_threads))
    warpgroups_[i]->role = role;
}

/// In its CTA.
string Cluster::warpgroup_name(int warpgroup) const {
  const string& role = warpgroups_[std::size_t(warpgroup)]->role;
  return role.empty() ? "warpgroup " + to_string(warpgroup % (cta_threads_ / warpgroup_threads)) : role;
}

/// In its CTA.
string Cluster::thread_name(const Thread& thread) const {
  return "thread " + to_string(thread.index % cta_threads_) + " (" + warpgroup_name(thread.warpgroup()) + ", warp " +
         to_string(thread.warp() % 4) + ", lane " + to_string(thread.lane()) + ")";
}

/// Who counts this component of the clocks: a thread, or a barrier that a word was sent to.
string Cluster::component_name(std::size_t component) const {
  if (component >= threads_.size()) return "send_word";
  return "thread " + to_string(component % std::size_t(cta_threads_)) + of_cta(threads_[component]->rank);
}

void Cluster::fail(const string& message) {
  if (failure_.empty()) {
    string who = "CTA " + to_string(running_ ? cta() : first_);
    if (running_)
      who += ", " + thread_name(*running_);
    else if (size() > 1)
      who = "cluster of CTAs " + to_string(first_) + " to " + to_string(first_ + size() - 1);
    failure_ =
        who + ": " + message + " [policy " + name(options_.completion) + ", seed " + to_string(options_.seed) + "]";
  }
  throw Abort{};
}

// ---- scheduler
// -------------------------------------------------------------------------------------------------------------

Cluster::Thread& Cluster::self() const { return *running_; }
int Cluster::thread() const { return running_->index % cta_threads_; }
int Cluster::rank() const { return running_->rank; }

/// A point at which another thread may run: under the random policy every primitive is one.
void Cluster::yield() {
  if (aborting_) throw Abort{};
  if (options_.completion != Completion::random || random_() % 8 != 0) return;
  Thread& thread = self();
  ready_.push_back(&thread);
  thread.fiber->suspend();
  if (aborting_) throw Abort{};
}

void Cluster::block(const void* key, const string& what) {
  Thread& thread = self();
  thread.blocked = true;
  thread.waits_for = what;
  waiting_[key].push_back(&thread);
  thread.fiber->suspend();
  if (aborting_) throw Abort{};
}

void Cluster::wake(const void* key, double time) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  for (Thread* thread : found->second) {
    thread->blocked = false;
    thread->time = std::max(thread->time, time);
    ready_.push_back(thread);
  }
  waiting_.erase(found);
}

Cluster::Thread* Cluster::pick() {
  if (ready_.empty()) return nullptr;
  std::size_t chosen = 0;
  if (options_.completion == Completion::random) {
    chosen = random_() % ready_.size();
  } else if (options_.completion == Completion::timed) {
    for (std::size_t i = 1; i < ready_.size(); ++i)
      if (ready_[i]->time < ready_[chosen]->time) chosen = i;
  } else {
    chosen = ready_.size() - 1;
  }
  Thread* thread = ready_[chosen];
  ready_[chosen] = ready_.back();
  ready_.pop_back();
  return thread;
}

void Cluster::run(const std::function<void()>& kernel) {
  current_cluster = this;
  for (auto& thread : threads_) {
    Thread* t = thread.get();
    t->fiber = std::make_unique<Fiber>([this, t, &kernel] {
      try {
        kernel();
        flush_compute(*t);
      } catch (const Abort&) {
      } catch (const std::exception& error) {
        if (failure_.empty()) failure_ = thread_name(*t) + of_cta(t->rank) + ": " + error.what();
      }
      t->finished = true;
    });
  }
  for (std::size_t i = threads_.size(); i-- > 0;) ready_.push_back(threads_[i].get());
  std::size_t alive = threads_.size();
  try {
    while (alive > 0) {
      if (options_.completion == Completion::random && random_() % 64 == 0) complete_something();
      Thread* next = pick();
      if (options_.completion == Completion::timed &&
          complete_timed(next ? next->time : std::numeric_limits<double>::infinity())) {
        if (next) ready_.push_back(next);
        continue;
      }
      if (next == nullptr) {
        if (complete_something()) continue;
        fail("deadlock\n" + deadlock_report());
      }
      running_ = next;
      now_ += 1;
      next->fiber->resume();
      running_ = nullptr;
      if (next->finished) {
        --alive;
        if (--sms_[std::size_t(next->rank)]->alive == 0) finish_cta(next->rank);
      }
      if (!failure_.empty()) throw Abort{};
    }
    finish_threads();
  } catch (...) {
    // A failure of the kernel (Abort), or of the simulator itself, say for want of memory. Unwind every fiber that is
    // still inside the kernel.
    if (failure_.empty()) failure_ = "the simulator failed; out of memory?";
    aborting_ = true;
    for (auto& thread : threads_) {
      if (thread->fiber && !thread->finished) {
        running_ = thread.get();
        thread->fiber->resume();
      }
    }
    running_ = nullptr;
  }
  current_cluster = nullptr;
  if (!failure_.empty()) throw Failure(failure_);
}

/// What must be true when a CTA's threads have returned: it knows of all that peers did to it.
void Cluster::finish_cta(int rank) {
  Clock known;
  for (const auto& thread : threads_)
    if (thread->rank == rank) known.join(thread->clock);
  for (const auto& [component, reach] : sms_[std::size_t(rank)]->reached)
    if (!known.knows(component, reach.count))
      fail("CTA " + to_string(first_ + rank) + " ends before it can know of " +
           (component < threads_.size() ? "an arrival by " + component_name(component) : string("bytes from a peer")) +
           " on " + barrier_name(*reach.barrier) + " (cluster_sync is missing)");
}

/// What must be true when all threads have returned.
void Cluster::finish_threads() {
  for (const auto& thread : threads_)
    if (const std::uint32_t read = thread->clock[stores_read_of(thread->index)]; read < thread->stores)
      fail(thread_name(*thread) + of_cta(thread->rank) +
           " ended without waiting until its TMA stores have read shared memory (" + to_string(read) + " of " +
           to_string(thread->stores) + " known)");
  for (Copy& copy : copies_)
    if (!copy.done) fail("the CTA ended with a TMA load in flight: " + descriptions_[copy.id]);
  for (const auto& warpgroup : warpgroups_)
    if (warpgroup->completed < warpgroup->first + warpgroup->products.size())
      fail("the CTA ended with wgmma in flight: " +
           descriptions_[warpgroup->products[warpgroup->completed - warpgroup->first].id]);
  for (int rank = 0; rank < size(); ++rank)
    for (std::size_t i = 0; i < 16; ++i)
      if (const NamedBarrierState& barrier = sms_[std::size_t(rank)]->named[i]; barrier.arrived != 0)
        fail("the CTA ended with named barrier " + to_string(i) + of_cta(rank) + " half full: " +
             to_string(barrier.arrived) + " of " + to_string(barrier.expected) + " threads have arrived");
  for (std::size_t warp = 0; warp < warps_.size(); ++warp)
    if (warps_[warp]->register_counts != warps_[warp / 4 * 4]->register_counts)
      fail("setmaxnreg: the warps of " + warpgroup_name(int(warp / 4)) + of_cta(warpgroups_[warp / 4]->rank) +
           " executed different ones");
}

string Cluster::deadlock_report() const {
  const auto pending = [](const std::uint64_t& state) {
    const BarrierState barrier = BarrierState::of(state);
    return to_string(barrier.pending) + " of " + to_string(barrier.expected) + " arrivals and " +
           to_string(barrier.bytes) + " bytes pending";
  };
  string report;
  for (std::size_t warp = 0; warp < threads_.size() / warp_threads; ++warp) {
    report += "  " + warpgroup_name(int(warp / 4)) + of_cta(warpgroups_[warp / 4]->rank) + ", warp " +
              to_string(warp % 4) + ": ";
    std::map<string, int> reasons;
    for (int lane = 0; lane < warp_threads; ++lane) {
      const Thread& thread = *threads_[warp * warp_threads + std::size_t(lane)];
      ++reasons[thread.finished ? "finished"
                                : "waits for " + thread.waits_for +
                                      (thread.waits_on ? " (" + pending(*thread.waits_on) + ")" : "")];
    }
    bool first = true;
    for (const auto& [reason, lanes] : reasons) {
      if (!first) report += "; ";
      report += reason + (reasons.size() > 1 ? " (" + to_string(lanes) + (lanes == 1 ? " lane)" : " lanes)") : "");
      first = false;
    }
    report += "\n";
  }
  for (int rank = 0; rank < size(); ++rank)
    if (const int free = sms_[std::size_t(rank)]->free_registers; free != 0)
      report += "  registers" + of_cta(rank) + " not claimed: " + to_string(free) + "\n";
  for (const auto& [state, record] : barriers_) {
    const BarrierState barrier = BarrierState::of(*state);
    if (barrier.pending != barrier.expected || barrier.bytes != 0)
      report += "  " + barrier_name(*state) + ": phase " + to_string(record.phases) + ", " + pending(*state) + "\n";
  }
  for (int rank = 0; rank < size(); ++rank)
    for (std::size_t i = 0; i < 16; ++i)
      if (const NamedBarrierState& barrier = sms_[std::size_t(rank)]->named[i]; barrier.arrived != 0)
        report += "  named barrier " + to_string(i) + of_cta(rank) + ": " + to_string(barrier.arrived) + " of " +
                  to_string(barrier.expected) + " threads have arrived\n";
  return report;
}

/// Completes one asynchronous operation, the policy's choice; false if there is none.
bool Cluster::complete_something() {
  if (options_.completion == Completion::timed) return complete_timed(std::numeric_limits<double>::infinity());
  std::vector<std::function<void()>> candidates;
  for (Copy& copy : copies_)
    if (!copy.done) candidates.push_back([this, &copy] { apply(copy); });
  // Products complete when a thread waits for them; at random also before.
  if (options_.completion == Completion::random)
    for (auto& warpgroup : warpgroups_)
      if (next_product_ready(*warpgroup)) candidates.push_back([this, w = warpgroup.get()] { complete_product(*w); });
  if (candidates.empty()) return false;
  candidates[options_.completion == Completion::random ? random_() % candidates.size() : 0]();
  return true;
}

/// Timed policy: completes the earliest operation that finishes before `horizon`.
bool Cluster::complete_timed(double horizon) {
  double earliest = horizon;
  Copy* copy = nullptr;
  Warpgroup* warpgroup = nullptr;
  for (Copy& candidate : copies_)
    if (!candidate.done && candidate.finish <= earliest) {
      earliest = candidate.finish;
      copy = &candidate;
    }
  for (auto& candidate : warpgroups_)
    if (next_product_ready(*candidate)) {
      const double finish = candidate->products[candidate->completed - candidate->first].finish;
      if (finish <= earliest) {
        earliest = finish;
        warpgroup = candidate.get();
      }
    }
  if (warpgroup)
    complete_product(*warpgroup);
  else if (copy)
    apply(*copy);
  return warpgroup || copy;
}

/// The thread's accesses up to here happen before whatever follows those who learn `to`.
void Cluster::publish_clock(Thread& thread, Clock& to) {
  to.join(thread.clock);
  thread.clock.raise(accesses_of(thread.index), thread.clock[accesses_of(thread.index)] + 1);
}

template <class OnLast>
void Cluster::meet(Rendezvous& rendezvous, int size, const string& what, bool orders_memory, OnLast on_last) {
  if (aborting_) throw Abort{};
  Thread& thread = self();
  if (rendezvous.arrived == 0) {
    rendezvous.operation = what;
    rendezvous.time = 0;
  } else if (rendezvous.operation != what) {
    fail("calls " + what + " while others of its group call " + rendezvous.operation);
  }
  rendezvous.time = std::max(rendezvous.time, thread.time);
  if (orders_memory) publish_clock(thread, rendezvous.arriving);
  const std::size_t generation = rendezvous.generation;
  if (++rendezvous.arrived == size) {
    if (orders_memory) rendezvous.known = rendezvous.arriving;
    on_last();
    rendezvous.arrived = 0;
    ++rendezvous.generation;
    rendezvous.released = rendezvous.time;
    thread.time = rendezvous.released;
    wake(&rendezvous, rendezvous.released);
  } else {
    while (rendezvous.generation == generation) block(&rendezvous, what);
  }
  if (orders_memory) thread.clock.join(rendezvous.known);
}

std::uint64_t Cluster::clock() const {
  return std::uint64_t(options_.completion == Completion::timed ? self().time : now_);
}

bool Cluster::elect_one() {
  meet(*warps_[std::size_t(self().warp())], warp_threads, "elect_one", false, [] {});
  // Which lane is elected is not specified, only that it is the same one in the whole warp.
  const std::uint64_t lane =
      options_.completion == Completion::random ? options_.seed * 7 + std::uint64_t(self().warp()) : 0;
  return std::uint64_t(thread() % warp_threads) == lane % warp_threads;
}

void Cluster::sync_cluster() {
  meet(*all_, int(threads_.size()), "cluster_sync", true, [] {});
}

void Cluster::sync_cta() {
  meet(sm().all, cta_threads_, "cta_sync", true, [] {});
}

void Cluster::sync_warp() {
  meet(*warps_[std::size_t(self().warp())], warp_threads, "warp_sync", true, [] {});
}

// ---- shared memory
// ---------------------------------------------------------------------------------------------------------

std::uint32_t Cluster::shared_address(const void* pointer) {
  const std::ptrdiff_t offset = static_cast<const std::byte*>(pointer) - shared();
  if (offset < 0 || std::size_t(offset) >= shared_bytes_) fail("address taken of something outside shared memory");
  return shared_base + std::uint32_t(offset);
}

void Cluster::check_range(std::uint32_t address, std::size_t bytes, const char* what) {
  if (address < shared_base || address - shared_base + bytes > shared_bytes_)
    fail(string(what) + " outside the shared-memory plan: " + to_string(bytes) + " bytes at offset " +
         to_string(std::int64_t(address) - shared_base) + " of " + to_string(shared_bytes_));
}

/// Calls known(component, count) for all that must have happened before an access to `chunk`: what it reads has landed,
/// what it overwrites is no longer read. Asynchronous work counts as done when somebody knows it is, whether or not the
/// policy has done it already.
template <class F>
void Cluster::check_order(std::uint32_t chunk_index, bool write, const string& what, F&& known) {
  const Chunk& chunk = chunks_[chunk_index];
  const auto race = [&](const string& other) {
    fail("race: " + what + (write ? " writes " : " reads ") + where(chunk_index * chunk_bytes) + ", " + other);
  };
  if (chunk.loaded != 0 && !known(chunk.load_component, chunk.load_phase))
    race("without having waited for " + descriptions_[chunk.loaded]);
  if (write) {
    if (chunk.store != 0 && !known(stores_read_of(chunk.storer), chunk.store))
      race("which a TMA store of " + component_name(chunk.storer) + " may still read");
    if (chunk.sent != 0 && !known(chunk.sent_component, chunk.sent)) race("which send_bytes may still read");
    for (const auto& warpgroup : warpgroups_) {
      const std::uint32_t product = warpgroup->read[chunk_index];
      for (int warp = 4 * warpgroup->index; product != 0 && warp < 4 * warpgroup->index + 4; ++warp)
        if (!known(products_retired_by(warp), product))
          race("which a wgmma of " + warpgroup_name(warpgroup->index) + of_cta(warpgroup->rank) + ", warp " +
               to_string(warp % 4) + " may still read");
    }
  }
}

/// An ordinary access by the running thread to an address of the CTA `rank`.
void Cluster::check_generic_access(int rank, std::uint32_t address, std::size_t bytes, bool write, const char* what) {
  check_range(address, bytes, what);
  Thread& thread = self();
  const Clock& clock = thread.clock;
  const std::uint32_t offset = offset_of(rank, address);
  const auto known = [&](std::size_t component, std::uint32_t count) { return clock.knows(component, count); };
  for (std::uint32_t i = offset / chunk_bytes; i <= (offset + bytes - 1) / chunk_bytes; ++i) {
    Chunk& chunk = chunks_[i];
    if (chunk.loading != 0)
      fail(string("race: ") + what + (write ? " writes " : " reads ") + where(i * chunk_bytes) + " while " +
           descriptions_[chunk.loading] + " is in flight");
    if (write && chunk.async_reads != 0)
      fail(string("race: ") + what + " writes " + where(i * chunk_bytes) + " while " + descriptions_[chunk.reader] +
           " still reads it");
    check_order(i, write, what, known);
    chunk.ordinary = true;
  }
  for (std::uint32_t i = offset / word_bytes; i <= (offset + bytes - 1) / word_bytes; ++i) {
    Word& word = words_[i];
    if (word.written != 0 && !clock.knows(word.writer, word.written))
      fail(string("race: ") + what + (write ? " writes " : " reads ") + where(i * word_bytes) +
           ", not ordered after the write by " + component_name(word.writer));
    if (write && word.read) {
      const Clock& readers = readers_[i];
      for (int reader = 0; reader < int(threads_.size()); ++reader)
        if (!clock.knows(accesses_of(reader), readers[accesses_of(reader)]))
          fail(string("race: ") + what + " writes " + where(i * word_bytes) + ", not ordered after the read by " +
               component_name(accesses_of(reader)));
      readers_.erase(i);
      word.read = false;
    }
    const std::uint32_t now = clock[accesses_of(thread.index)];
    if (write) {
      word.written = now;
      word.fenced = 0;
      word.writer = std::uint16_t(thread.index);
      word.unfenced = true;
      thread.unfenced_words.push_back(i);
    } else {
      word.read = true;
      readers_[i].raise(accesses_of(thread.index), now);
    }
  }
}

/// An access that TMA begins, issued by the running thread.
void Cluster::check_async_access(std::uint32_t offset, std::size_t bytes, bool write, std::uint32_t id) {
  const Clock& clock = self().clock;
  const string& what = descriptions_[id];
  const auto known = [&](std::size_t component, std::uint32_t count) { return clock.knows(component, count); };
  for (std::uint32_t i = offset / chunk_bytes; i < (offset + bytes) / chunk_bytes; ++i) {
    Chunk& chunk = chunks_[i];
    if (chunk.loading != 0)
      fail("race: " + what + " is issued while " + descriptions_[chunk.loading] + " is in flight");
    if (write && chunk.async_reads != 0)
      fail("race: " + what + " is issued while " + descriptions_[chunk.reader] + " still reads " +
           where(i * chunk_bytes));
    check_order(i, write, what, known);
    if (!chunk.ordinary) continue;
    for (std::uint32_t w = i * (chunk_bytes / word_bytes); w < (i + 1) * (chunk_bytes / word_bytes); ++w) {
      Word& word = words_[w];
      const bool fenced_here = self().at_fence.knows(word.writer, word.written);
      if (word.unfenced && !fenced_here)
        fail(what + (write ? " overwrites" : " reads") + " what " + component_name(word.writer) +
             " wrote without fence_async_shared (" + where(i * chunk_bytes) + ")");
      if (word.written != 0 && !fenced_here && !clock.knows(word.writer, word.ready()))
        fail("race: " + what + " is not ordered after the fence of " + component_name(word.writer) + ", which wrote " +
             where(i * chunk_bytes));
      if (!write) continue;
      if (word.read) {
        const Clock& readers = readers_[w];
        for (int reader = 0; reader < int(threads_.size()); ++reader)
          if (!clock.knows(accesses_of(reader), readers[accesses_of(reader)]))
            fail("race: " + what + " overwrites " + where(i * chunk_bytes) + ", which " +
                 component_name(accesses_of(reader)) + " may still read");
        readers_.erase(w);
      }
      word = {};
    }
    if (write) chunk.ordinary = false;
  }
}

std::uint32_t Cluster::swizzled(std::uint32_t address, int swizzle_bytes) const {
  // Address bits 4.. are XORed with bits 7..: three bits for 128 bytes, two for 64, one for 32.
  const std::uint32_t mask = std::uint32_t(swizzle_bytes / 16 - 1) << 4;
  return address ^ (address >> 3 & mask);
}

void Cluster::store_ordinary(void* to, const void* from, std::size_t bytes) {
  yield();
  check_generic_access(rank(), shared_address(to), bytes, true, "an ordinary store");
  std::memcpy(to, from, bytes);
  counters_.ordinary_bytes += bytes;
}

void Cluster::load_ordinary(void* to, const void* from, std::size_t bytes) {
  yield();
  check_generic_access(rank(), shared_address(from), bytes, false, "an ordinary load");
  std::memcpy(to, from, bytes);
  counters_.ordinary_bytes += bytes;
}

void Cluster::fence_async_shared() {
  yield();
  Thread& thread = self();
  for (const std::uint32_t i : thread.unfenced_words) {
    Word& word = words_[i];
    if (!word.unfenced || word.writer != thread.index) continue;
    word.unfenced = false;
    word.fenced = thread.clock[accesses_of(thread.index)];
  }
  thread.unfenced_words.clear();
  thread.at_fence = thread.clock;
}

// ---- barriers
// --------------------------------------------------------------------------------------------------------------

void Cluster::mbarrier_init(std::uint64_t& state, int arrivals) {
  yield();
  const std::uint32_t address = shared_address(&state);
  if (address % 8 != 0) fail("mbarrier.init: " + barrier_name(state) + " is not 8-byte aligned");
  if (arrivals < 1 || arrivals > 0xfffff)
    fail("mbarrier.init: " + barrier_name(state) + ": " + to_string(arrivals) + " arrivals");
  state = BarrierState{0, arrivals, arrivals, 0}.bits();
  const std::size_t index = barriers_.contains(&state) ? barriers_[&state].index : barriers_.size();
  BarrierRecord& record = barriers_[&state] = BarrierRecord{};
  record.index = index;
  record.initialiser = self().index;
  record.initialised = self().clock[accesses_of(self().index)];
}

/// The record of a barrier that the running thread is about to use; it must know that the barrier has been initialised.
Cluster::BarrierRecord& Cluster::barrier_record(const std::uint64_t& state, const char* verb) {
  const auto found = barriers_.find(&state);
  if (found == barriers_.end()) fail(string(verb) + " " + barrier_name(state) + ", which is not initialised");
  const BarrierRecord& record = found->second;
  if (!self().clock.knows(accesses_of(record.initialiser), record.initialised))
    fail("race: " + string(verb) + " " + barrier_name(state) + ", not ordered after its initialisation by " +
         component_name(accesses_of(record.initialiser)) +
         (threads_[std::size_t(record.initialiser)]->rank == rank() ? " (cta_sync is missing)"
                                                                    : " (cluster_sync is missing)"));
  return found->second;
}

void Cluster::fence_barrier_init() {
  yield();
  for (auto& [state, record] : barriers_)
    if (record.initialiser == self().index) record.fenced = true;
}

void Cluster::barrier_check_phase(std::uint64_t& state, double time) {
  BarrierState barrier = BarrierState::of(state);
  BarrierRecord& record = barriers_[&state];
  record.time = std::max(record.time, time);
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.expected;
  state = barrier.bits();
  ++record.phases;
  record.arriving.raise(phases_of(record.index), record.phases);
  record.released = record.arriving;
  wake(&state, record.time + barrier_latency);
}

/// The barrier at the place of `state` in the CTA `rank`, which the running thread is about to use.
std::uint64_t& Cluster::peer(std::uint64_t& state, int rank, const char* verb) {
  if (rank < 0 || rank >= size())
    fail(string(verb) + " a barrier of rank " + to_string(rank) + " in a cluster of " + to_string(size()));
  auto& remote = *reinterpret_cast<std::uint64_t*>(shared_ + offset_of(rank, shared_address(&state)));
  if (sms_[std::size_t(rank)]->alive == 0)
    fail(string(verb) + " " + barrier_name(remote) + ", but that CTA has ended (cluster_sync is missing)");
  if (!barrier_record(remote, verb).fenced)
    fail(string(verb) + " " + barrier_name(remote) + ", whose initialisation was not fenced (fence_barrier_init)");
  return remote;
}

/// An arrival of the running thread.
void Cluster::arrive(std::uint64_t& state, int expected_bytes) {
  BarrierRecord& record = barrier_record(state, "arrives on");
  BarrierState barrier = BarrierState::of(state);
  if (barrier.pending == 0)
    fail("arrives on " + barrier_name(state) + " beyond the " + to_string(barrier.expected) + " arrivals of its phase");
  if (expected_bytes < 0 || barrier.bytes + expected_bytes >= BarrierState::bias)
    fail("expects " + to_string(expected_bytes) + " bytes on " + barrier_name(state) +
         ": beyond what an mbarrier can count");
  barrier.bytes += expected_bytes;
  --barrier.pending;
  if (barrier.pending == 0 && barrier.bytes < 0) fail_surplus(state, barrier.bytes);
  state = barrier.bits();
  publish_clock(self(), record.arriving);
  barrier_check_phase(state, self().time);
}

void Cluster::mbarrier_arrive(std::uint64_t& state, int expected_bytes) {
  yield();
  flush_compute(self());
  arrive(state, expected_bytes);
}

void Cluster::mbarrier_arrive_remote(std::uint64_t& state, int rank) {
  yield();
  flush_compute(self());
  std::uint64_t& remote = peer(state, rank, "arrives on");
  const std::size_t component = accesses_of(self().index);
  if (rank != self().rank) sms_[std::size_t(rank)]->reached[component] = {self().clock[component], &remote};
  arrive(remote, 0);
}

void Cluster::mbarrier_wait(std::uint64_t& state, int parity) {
  yield();
  Thread& thread = self();
  flush_compute(thread);
  const BarrierRecord& barrier = barrier_record(state, "waits for");
  const double begin = thread.time;
  thread.waits_on = &state;
  while (BarrierState::of(state).phase == unsigned(parity & 1))
    block(&state, barrier_name(state) + ", phase of parity " + to_string(parity & 1));
  thread.waits_on = nullptr;
  thread.clock.join(barrier.released);
  if (thread.lane() == 0 && thread.time > begin)
    record(thread.rank, "warpgroup " + to_string(thread.warpgroup()) + " waits", barrier_name(state), begin,
           thread.time);
  thread.compute_begin = thread.time;
}

void Cluster::fail_surplus(const std::uint64_t& state, int bytes) {
  fail(barrier_name(state) + ": " + to_string(-bytes) + " more bytes landed than were expected in this phase");
}

/// The copy that the running thread issues will count in the barrier's present phase; returns the component that says
/// so.
std::size_t Cluster::count_on_barrier(Copy& copy, const char* verb) {
  const BarrierRecord& record = barrier_record(*copy.barrier, verb);
  copy.phase = record.phases + 1;
  copy.from_peer = copy.rank != self().rank;
  const std::size_t component = phases_of(record.index);
  if (!copy.from_peer) return component;
  // The peer may not have got to this phase yet, but it must have left the one before.
  if (!self().clock.knows(component, record.phases))
    fail("race: " + descriptions_[copy.id] + " may count in either of two phases of " + barrier_name(*copy.barrier) +
         ": this thread cannot know that the latest has completed");
  sms_[std::size_t(copy.rank)]->reached[component] = {copy.phase, copy.barrier};
  return component;
}

void Cluster::barrier_complete_bytes(const Copy& copy) {
  std::uint64_t& state = *copy.barrier;
  const string what = copy.kind == Copy::Kind::word   ? "a sent word"
                      : copy.kind == Copy::Kind::sent ? "send_bytes"
                                                      : "a TMA load";
  const auto found = barriers_.find(&state);
  if (found == barriers_.end()) fail(what + " completes on " + barrier_name(state) + ", which is not initialised");
  if (!found->second.fenced)
    fail(what + " completes on " + barrier_name(state) + ", whose initialisation was not fenced (fence_barrier_init)");
  BarrierState barrier = BarrierState::of(state);
  barrier.bytes -= copy.bytes();
  // A peer's bytes may come before this CTA expects them, and then are expected later in the same phase.
  if (copy.from_peer && found->second.phases >= copy.phase)
    fail(descriptions_[copy.id] + " lands after " + barrier_name(state) +
         " has completed its phase: too few bytes were expected");
  if (barrier.bytes < 0 && (!copy.from_peer || barrier.pending == 0)) fail_surplus(state, barrier.bytes);
  state = barrier.bits();
  barrier_check_phase(state, copy.finish);
}

void Cluster::named_barrier(int id, int threads, bool wait) {
  yield();
  Thread& thread = self();
  flush_compute(thread);
  if (id < 1 || id > 15) fail("named barrier " + to_string(id) + ": ids are 1 to 15");
  if (threads <= 0 || threads % warp_threads != 0 || threads > cta_threads_)
    fail("named barrier " + to_string(id) + ": " + to_string(threads) +
         " threads; it must be a multiple of 32 within the CTA");
  NamedBarrierState& barrier = sm().named[std::size_t(id)];
  if (barrier.arrived == 0) {
    barrier.expected = threads;
    barrier.time = 0;
    std::fill(barrier.seen.begin(), barrier.seen.end(), false);
  } else if (barrier.expected != threads) {
    fail("named barrier " + to_string(id) + ": " + to_string(threads) + " threads named here, " +
         to_string(barrier.expected) + " by an earlier arrival of the same phase");
  }
  const auto index = std::size_t(thread.index % cta_threads_);
  if (barrier.seen[index]) fail("named barrier " + to_string(id) + ": arrives twice in one phase");
  barrier.seen[index] = true;
  barrier.time = std::max(barrier.time, thread.time);
  publish_clock(thread, barrier.arriving);
  const std::size_t generation = barrier.generation;
  const double begin = thread.time;
  if (++barrier.arrived == barrier.expected) {
    barrier.known = barrier.arriving;
    barrier.arrived = 0;
    ++barrier.generation;
    barrier.released = barrier.time + barrier_latency;
    if (wait) thread.time = barrier.released;
    wake(&barrier, barrier.released);
  } else if (wait) {
    while (barrier.generation == generation) block(&barrier, "named barrier " + to_string(id));
  }
  if (wait) thread.clock.join(barrier.known);
  if (wait && thread.lane() == 0 && thread.time > begin)
    record(thread.rank, "warpgroup " + to_string(thread.warpgroup()) + " waits", "turn", begin, thread.time);
  if (wait) thread.compute_begin = thread.time;
}

void Cluster::registers(int count, bool claim) {
  yield();
  if (count % 8 != 0 || count < 24 || count > 256)
    fail("setmaxnreg " + to_string(count) + ": a multiple of 8 from 24 to 256 is allowed");
  int& free = sm().free_registers;
  // Warp by warp: neither the warps of a warpgroup nor anybody's memory accesses are ordered by it.
  Rendezvous& warp = *warps_[std::size_t(self().warp())];
  meet(warp, warp_threads, "setmaxnreg", false, [&] {
    const int change = count - warp.register_counts.back();
    if (claim ? change < 0 : change > 0)
      fail(string("setmaxnreg.") + (claim ? "inc" : "dec") + " " + to_string(count) + " from " +
           to_string(warp.register_counts.back()) + " registers");
    while (claim && free < change * warp_threads)
      block(&free, to_string(change * warp_threads) + " registers of the launch's allocation (setmaxnreg " +
                       to_string(count) + "), of which too few are free");
    free -= change * warp_threads;
    warp.register_counts.push_back(count);
    wake(&free, self().time);
  });
}

// ---- arithmetic that needs other threads or takes noticeable time
// --------------------------------------------------------------

/// What `make` makes of the 32 numbers that the warp's lanes give: one for each lane. As in the hardware the whole warp
/// must come, also where lanes exchange in fours.
template <class Make>
std::uint32_t Cluster::shuffle(std::uint32_t x, const char* what, Make make) {
  Rendezvous& warp = *warps_[std::size_t(self().warp())];
  const auto lane = std::size_t(self().lane());
  warp.address[lane] = x;
  // Kept apart, because a thread may enter the next rendezvous before another has left this one.
  meet(warp, warp_threads, what, false, [&] {
    for (std::size_t i = 0; i < warp_threads; ++i) warp.exchanged[i] = make(warp.address, i);
  });
  return warp.exchanged[lane];
}

bool Cluster::warp_any(bool x) {
  return shuffle(x, "warp_any", [](const auto& all, std::size_t) {
           return std::uint32_t(std::find(all.begin(), all.end(), 1u) != all.end());
         }) != 0;
}

int Cluster::from_lane_0(int x, const char* what) {
  return int(shuffle(std::uint32_t(x), what, [](const auto& all, std::size_t) { return all[0]; }));
}

int Cluster::same_in_warp(int x, const char* what) {
  const int of_lane_0 = from_lane_0(x, what);
  if (of_lane_0 != x) fail(string(what) + " of " + to_string(x) + ", where lane 0 has " + to_string(of_lane_0));
  return x;
}

float Cluster::quad_reduce(float value, bool maximum) {
  const auto reduce = [maximum](const auto& all, std::size_t lane) {
    const auto of = [&](std::size_t i) { return std::bit_cast<float>(all[lane / 4 * 4 + i]); };
    // In the order of two butterfly exchanges, so that the result does not depend on who comes first.
    return std::bit_cast<std::uint32_t>(maximum ? std::fmax(std::fmax(of(0), of(1)), std::fmax(of(2), of(3)))
                                                : (of(0) + of(1)) + (of(2) + of(3)));
  };
  return std::bit_cast<float>(shuffle(std::bit_cast<std::uint32_t>(value), maximum ? "quad_max" : "quad_sum", reduce));
}

std::uint32_t Cluster::quad_exchange(std::uint32_t x) {
  return shuffle(x, "from_neighbour", [](const auto& all, std::size_t lane) { return all[lane ^ 1]; });
}

std::uint32_t Cluster::lane_exchange(std::uint32_t x, int mask) {
  return shuffle(x, "from_lane_xor",
                 [mask](const auto& all, std::size_t lane) { return all[lane ^ std::size_t(mask)]; });
}

std::uint32_t Cluster::warp_max(std::uint32_t x) {
  return shuffle(x, "warp_max", [](const auto& all, std::size_t) { return *std::max_element(all.begin(), all.end()); });
}

void Cluster::account_exp2() {
  Thread& thread = self();
  ++counters_.exp2;
  if (options_.completion != Completion::timed) return;
  if (thread.lane() == 0) {
    double& free = sm().exp2_free[std::size_t(thread.warp() % 4)];
    free = std::max(free, thread.time) + exp2_cycles;
    thread.time = free;
  } else {
    thread.time += exp2_cycles;
  }
  thread.has_exp2 = true;
}

void Cluster::account_alu(double warp_cycles, const char* label) {
  if (options_.completion != Completion::timed) return;
  Thread& thread = self();
  thread.time += warp_cycles;
  if (label[0] == 'c') thread.has_convert = true;
}

// ---- register fragments
// ------------------------------------------------------------------------------------------------------

void Cluster::stmatrix(std::uint32_t address, const std::uint32_t* fragment, bool transposed) {
  yield();
  Rendezvous& warp = *warps_[std::size_t(self().warp())];
  const auto lane = std::size_t(self().lane());
  if (address % 16 != 0) fail("stmatrix: row address " + where(offset_of(rank(), address)) + " is not 16-byte aligned");
  check_generic_access(rank(), address, 16, true, "stmatrix");
  warp.address[lane] = address;
  std::copy(fragment, fragment + 4, warp.fragment[lane].begin());
  meet(warp, warp_threads, "stmatrix", false, [&] {
    for (std::size_t matrix = 0; matrix < 4; ++matrix) {
      std::array<int, 32> bank{};
      for (std::size_t row = 0; row < 8; ++row) {
        const std::uint32_t offset = offset_of(rank(), warp.address[8 * matrix + row]);
        for (std::size_t column = 0; column < 8; ++column) {
          const std::size_t i = transposed ? column : row, j = transposed ? row : column;
          const auto bits = std::uint16_t(warp.fragment[4 * i + j / 2][matrix] >> 16 * (j % 2));
          std::memcpy(shared_ + offset + 2 * column, &bits, 2);
        }
        ++bank[offset / 4 % 32];
      }
      ++counters_.matrix_phases;
      counters_.bank_conflicts += std::uint64_t(*std::max_element(bank.begin(), bank.end()) - 1);
    }
    counters_.stmatrix_bytes += 512;
  });
}

void Cluster::ldmatrix(std::uint32_t address, std::uint32_t* fragment, bool transposed) {
  yield();
  Rendezvous& warp = *warps_[std::size_t(self().warp())];
  const auto lane = std::size_t(self().lane());
  if (address % 16 != 0) fail("ldmatrix: row address " + where(offset_of(rank(), address)) + " is not 16-byte aligned");
  check_generic_access(rank(), address, 16, false, "ldmatrix");
  warp.address[lane] = address;
  meet(warp, warp_threads, "ldmatrix", false, [&] {
    for (std::size_t matrix = 0; matrix < 4; ++matrix) {
      std::array<int, 32> bank{};
      for (std::size_t row = 0; row < 8; ++row) {
        const std::uint32_t offset = offset_of(rank(), warp.address[8 * matrix + row]);
        for (std::size_t column = 0; column < 8; ++column) {
          const std::size_t i = transposed ? column : row, j = transposed ? row : column;
          auto* const lane_bytes = reinterpret_cast<std::byte*>(&warp.fragment[4 * i + j / 2][matrix]);
          std::memcpy(lane_bytes + 2 * (j % 2), shared_ + offset + 2 * column, 2);
        }
        ++bank[offset / 4 % 32];
      }
      ++counters_.matrix_phases;
      counters_.bank_conflicts += std::uint64_t(*std::max_element(bank.begin(), bank.end()) - 1);
    }
    counters_.ldmatrix_bytes += 512;
  });
  std::copy(warp.fragment[lane].begin(), warp.fragment[lane].end(), fragment);
}

// ---- TMA
// -----------------------------------------------------------------------------------------------------------------------

/// What the hardware answers with an illegal instruction.
void Cluster::check_coordinates(const Copy& copy) {
  const auto& [feature, row, head, batch] = copy.at;
  if (feature % 8 != 0)
    fail("TMA of " + string(copy.spec.name) + ": the box begins at feature " + to_string(feature) +
         "; it must be a multiple of 8 (16 bytes)");
  if (copy.stores() && (feature < 0 || row < 0 || head < 0 || batch < 0))
    fail("TMA store of " + string(copy.spec.name) + ": the box begins at feature " + to_string(feature) + ", row " +
         to_string(row) + ", head " + to_string(head) + ", batch " + to_string(batch) +
         "; stores must not have negative coordinates");
}

void Cluster::tma_load(std::uint32_t address, const hopper::TensorMap& map, hopper::Coordinates at,
                       std::uint64_t& barrier, unsigned ctas) {
  yield();
  Copy copy{.kind = Copy::Kind::load, .spec = decode(map), .at = at, .address = address};
  // Loads into several CTAs share a block between them.
  copy.block = at.row / int(copy.spec.box_rows * unsigned(std::popcount(ctas)));
  for (copy.rank = 0; ctas >> copy.rank != 0; ++copy.rank) {
    if ((ctas >> copy.rank & 1) == 0) continue;
    copy.barrier = copy.rank == rank() ? &barrier : &peer(barrier, copy.rank, "loads onto");
    start_tma(copy);
  }
  self().time += 4;
}

void Cluster::tma_store(const hopper::TensorMap& map, hopper::Coordinates at, std::uint32_t address, bool add) {
  yield();
  start_tma({.kind = add ? Copy::Kind::add : Copy::Kind::store,
             .spec = decode(map),
             .at = at,
             .rank = rank(),
             .address = address,
             .number = ++self().stores});
}

void Cluster::bulk_load(void* to, const void* from, int bytes, std::uint64_t& barrier) {
  yield();
  Copy copy{.kind = Copy::Kind::bulk_load, .rank = rank(), .address = shared_address(to)};
  copy.barrier = &barrier;
  start_bulk(copy, const_cast<void*>(from), bytes);
}

void Cluster::bulk_add(float* to, const void* from, int bytes) {
  yield();
  start_bulk({.kind = Copy::Kind::bulk_add, .rank = rank(), .address = shared_address(from), .number = ++self().stores},
             to, bytes);
}

void Cluster::start_bulk(Copy copy, void* global, int bytes) {
  if (reinterpret_cast<std::uintptr_t>(global) % 16 != 0 || bytes <= 0 || bytes % 16 != 0)
    fail("bulk copy of " + to_string(bytes) + " bytes: they must begin at a multiple of 16 bytes and be one");
  copy.spec.name = "a row of numbers";
  copy.global = global;
  copy.length = bytes;
  start_tma(copy);
  self().time += 4;
}

void Cluster::wait_for_count(const unsigned& counter, unsigned count) {
  yield();
  // CTAs run one after the other, so only threads of this one are left to raise it.
  while (counter != count) block(&counter, "count " + to_string(count) + ", which is " + to_string(counter));
}

void Cluster::raise_count(unsigned& counter) {
  yield();
  ++counter;
  wake(&counter, self().time);
}

void Cluster::send_bytes(void* to, const void* from, int bytes, std::uint64_t& barrier, int rank) {
  yield();
  Copy copy{.kind = Copy::Kind::sent, .length = bytes, .rank = rank, .address = shared_address(to)};
  const std::uint32_t source = shared_address(from);
  check_range(source, std::size_t(bytes), "send_bytes");
  copy.from = offset_of(self().rank, source);
  copy.barrier = &peer(barrier, rank, "sends bytes to");
  if (bytes <= 0 || bytes % 16 != 0 || copy.from % chunk_bytes != 0)
    fail("send_bytes of " + to_string(bytes) + " bytes: they must begin at a multiple of 16 bytes and be one");
  start_tma(copy);
  self().time += 4;
}

/// A copy between global memory, or the running thread's shared memory, and the shared memory of the CTA `copy.rank`,
/// by the running thread.
void Cluster::start_tma(Copy copy) {
  Thread& thread = self();
  const bool load = copy.loads();
  const bool sent = copy.kind == Copy::Kind::sent;
  const string what =
      sent ? "TMA copy from " + where(copy.from) : string(load ? "TMA load of " : "TMA store of ") + copy.spec.name;
  copy.thread = thread.index;
  copy.id = next_id_++;
  const std::uint32_t bytes = std::uint32_t(copy.bytes());
  check_range(copy.address, bytes, load ? "TMA load" : "TMA store");
  if (!copy.bulk()) check_coordinates(copy);
  const std::uint32_t offset = offset_of(copy.rank, copy.address);
  if (copy.bulk() && offset % chunk_bytes != 0)
    fail(what + " to " + where(offset) + ": the address must be a multiple of 16 bytes");
  if (!copy.bulk() && offset % std::uint32_t(8 * copy.spec.swizzle_bytes) != 0)
    fail(what + (load ? " to " : " from ") + where(offset) + ": the address must be a multiple of " +
         to_string(8 * copy.spec.swizzle_bytes) + " bytes, or the swizzle is not the one wgmma expects");
  Region* region = region_at(offset);
  descriptions_[copy.id] = "the " + what + (sent ? " " : " rows " + to_string(copy.at.row) + ".. ") +
                           (!load ? "from " + where(offset) : "into " + (region ? region->name : where(offset)));
  const std::size_t landed = load ? count_on_barrier(copy, "loads onto") : 0;
  check_async_access(offset, bytes, load, copy.id);
  if (sent) {
    check_async_access(copy.from, bytes, false, copy.id);
    for (std::uint32_t i = copy.from / chunk_bytes; i < (copy.from + bytes) / chunk_bytes; ++i) {
      Chunk& chunk = chunks_[i];
      ++chunk.async_reads;
      chunk.reader = copy.id;
      chunk.sent = copy.phase;
      chunk.sent_component = std::uint16_t(landed);
    }
    counters_.tma_store_bytes += bytes;
  }
  for (std::uint32_t i = offset / chunk_bytes; i < (offset + bytes) / chunk_bytes; ++i) {
    Chunk& chunk = chunks_[i];
    if (load) {
      chunk.loading = chunk.loaded = copy.id;
      chunk.load_component = std::uint16_t(landed);
      chunk.load_phase = copy.phase;
      chunk.swizzle_bytes = copy.kind == Copy::Kind::sent ? any_swizzle : std::uint8_t(copy.spec.swizzle_bytes);
      chunk.store = chunk.sent = 0;
      for (auto& warpgroup : warpgroups_) warpgroup->read[i] = 0;
    } else {
      ++chunk.async_reads;
      chunk.reader = copy.id;
      chunk.store = copy.number;
      chunk.storer = std::uint16_t(thread.index);
    }
  }
  if (load && region) region->block = copy.block;
  if (load) std::memset(shared_ + offset, 0xff, bytes);
  (load ? counters_.tma_load_bytes : counters_.tma_store_bytes) += bytes;
  double& free = sms_[std::size_t(copy.rank)]->tma_free;
  free = std::max(free, thread.time) + bytes / load_bytes_per_cycle;
  copy.finish = free + load_latency;
  record(copy.rank, "TMA", descriptions_[copy.id].substr(8), free - bytes / load_bytes_per_cycle, copy.finish);
  copies_.push_back(copy);
  if (options_.completion == Completion::eager) apply(copies_.back());
}

void Cluster::send_word(std::uint32_t& to, std::uint32_t value, std::uint64_t& barrier, int rank) {
  yield();
  Copy copy{.kind = Copy::Kind::word, .word = value, .rank = rank, .address = shared_address(&to)};
  copy.barrier = &peer(barrier, rank, "sends a word to");
  copy.thread = self().index;
  copy.id = next_id_++;
  const std::uint32_t offset = offset_of(rank, copy.address);
  descriptions_[copy.id] = "the word sent to " + where(offset);
  const std::size_t landed = count_on_barrier(copy, "sends a word to");
  check_generic_access(rank, copy.address, word_bytes, true, "send_word");
  // Known by waiting for the barrier, not by whatever the sender does next.
  words_[offset / word_bytes] = {copy.phase, std::uint16_t(landed), false, false};
  std::memset(shared_ + offset, 0xff, word_bytes);
  counters_.ordinary_bytes += word_bytes;
  copy.finish = self().time + word_latency;
  copies_.push_back(copy);
  if (options_.completion == Completion::eager) apply(copies_.back());
}

void Cluster::store_commit() {
  yield();
  self().store_groups.push_back(self().stores);
}

void Cluster::store_wait_read(int pending) {
  yield();
  Thread& thread = self();
  flush_compute(thread);
  const std::size_t groups = thread.store_groups.size();
  const std::uint32_t needed =
      groups > std::size_t(pending) ? thread.store_groups[groups - 1 - std::size_t(pending)] : 0;
  for (;;) {
    Copy* open = nullptr;
    for (Copy& copy : copies_)
      if (!copy.done && copy.stores() && copy.thread == thread.index && copy.number <= needed) open = &copy;
    if (open == nullptr) break;
    if (options_.completion == Completion::timed)
      block(open, descriptions_[open->id]);
    else
      apply(*open);
  }
  thread.clock.raise(stores_read_of(thread.index), needed);
  thread.compute_begin = thread.time;
}

/// Moves a copy's data, now.
void Cluster::apply(Copy& copy) {
  copy.done = true;
  const hopper::TensorMapSpec& spec = copy.spec;
  const std::uint32_t offset = offset_of(copy.rank, copy.address);
  if (copy.kind == Copy::Kind::word) std::memcpy(shared_ + offset, &copy.word, word_bytes);
  if (copy.kind == Copy::Kind::sent) {
    std::memcpy(shared_ + offset, shared_ + copy.from, std::size_t(copy.length));
    for (std::uint32_t i = 0; i < std::uint32_t(copy.length) / chunk_bytes; ++i)
      --chunks_[copy.from / chunk_bytes + i].async_reads;
  }
  if (copy.kind == Copy::Kind::bulk_load) std::memcpy(shared_ + offset, copy.global, std::size_t(copy.length));
  if (copy.kind == Copy::Kind::bulk_add) {
    for (int i = 0; i < copy.length / int(sizeof(float)); ++i)
      static_cast<float*>(copy.global)[i] += reinterpret_cast<const float*>(shared_ + offset)[i];
  }
  const std::int64_t position[4] = {copy.at.feature, copy.at.row, copy.at.head, copy.at.batch};
  for (std::uint32_t row = 0; row < spec.box_rows; ++row) {
    for (std::uint32_t feature = 0; feature < spec.box_features; ++feature) {
      const std::int64_t at[4] = {position[0] + feature, position[1] + row, position[2], position[3]};
      bool inside = true;
      for (int i = 0; i < 4; ++i) inside &= at[i] >= 0 && std::uint64_t(at[i]) < spec.extent[i];
      std::byte* local =
          shared_ + offset_of(copy.rank, swizzled(copy.address + row * std::uint32_t(spec.swizzle_bytes) + 2 * feature,
                                                  spec.swizzle_bytes));
      std::byte* global = static_cast<std::byte*>(spec.data) + 2 * at[0];
      for (int i = 1; i < 4; ++i) global += at[i] * std::int64_t(spec.stride_bytes[i - 1]);
      if (copy.kind == Copy::Kind::load) {
        if (inside)
          std::memcpy(local, global, 2);
        else
          std::memset(local, 0, 2);
      } else if (inside) {
        if (copy.kind == Copy::Kind::add) {
          std::uint16_t a, b;
          std::memcpy(&a, global, 2);
          std::memcpy(&b, local, 2);
          const std::vector<float>& value = values_of(spec.element);
          const float sum = value[a] + value[b];
          const std::uint16_t bits =
              spec.element == hopper::Element::f16 ? from_float<Half>(sum).bits : from_float<Bfloat16>(sum).bits;
          std::memcpy(global, &bits, 2);
        } else {
          std::memcpy(global, local, 2);
        }
      }
    }
  }
  for (std::uint32_t i = offset / chunk_bytes; i < (offset + std::uint32_t(copy.bytes())) / chunk_bytes; ++i) {
    if (copy.stores()) --chunks_[i].async_reads;
    if (copy.loads()) chunks_[i].loading = 0;
  }
  const Copy finished = copy;
  wake(&copy, copy.finish);
  while (!copies_.empty() && copies_.front().done) copies_.pop_front();
  if (finished.barrier) barrier_complete_bytes(finished);
}

// ---- tensor core
// -----------------------------------------------------------------------------------------------------------------

void Cluster::wgmma_fence() {
  yield();
  flush_compute(self());
  self().fenced = true;
}

/// Calls visit(chunk index, swizzle) for every 16-byte chunk of shared memory the product reads.
template <class F>
void Cluster::for_operand_chunks(const Warpgroup& warpgroup, const Product& product, F&& visit) {
  const auto at = [&](std::uint32_t address, int swizzle_bytes) {
    const std::uint32_t physical = swizzled(address, swizzle_bytes);
    check_range(physical, chunk_bytes, "wgmma operand");
    visit(offset_of(warpgroup.rank, physical) / chunk_bytes, swizzle_bytes);
  };
  if (!product.a_in_registers) {
    const Descriptor a(product.a);
    if (product.a_across) {
      for (int depth = 0; depth < 16; ++depth)
        for (int row = 0; row < 64; row += 8) at(a.n_major(depth, row), a.swizzle_bytes);
    } else {
      for (int row = 0; row < 64; ++row)
        for (int depth = 0; depth < 16; depth += 8) at(a.k_major(row, depth), a.swizzle_bytes);
    }
  }
  const Descriptor b(product.b);
  if (product.b_across) {
    for (int depth = 0; depth < 16; ++depth)
      for (int column = 0; column < product.columns; column += 8) at(b.n_major(depth, column), b.swizzle_bytes);
  } else {
    for (int row = 0; row < product.columns; ++row)
      for (int depth = 0; depth < 16; depth += 8) at(b.k_major(row, depth), b.swizzle_bytes);
  }
}

/// The first thread issues the product: from here on the tensor core may read its operands at any time. Finds out what
/// each thread must know to have happened when it issues the product: the operands have landed, ordinary writes to them
/// were fenced.
void Cluster::begin_product(Warpgroup& warpgroup, Product& product, std::uint32_t number) {
  const Region* region = region_at(offset_of(warpgroup.rank, Descriptor(product.b).start));
  product.block = region ? region->block : -1;
  product.id = next_id_++;
  descriptions_[product.id] =
      "wgmma of " + warpgroup_name(warpgroup.index) + of_cta(warpgroup.rank) +
      (product.a_in_registers ? " (P V, V in " : " (Q K^T, K in ") +
      (region ? region->name + (product.block >= 0 ? ", block " + to_string(product.block) : "") : "shared memory") +
      ")";
  constexpr std::uint32_t never = ~std::uint32_t(0);
  const auto need = [&](std::size_t component, std::uint32_t count, std::uint32_t write, std::uint32_t chunk) {
    for (const Product::Need& known : product.needs)
      if (known.component == component && known.count >= count && known.write >= write) return;
    product.needs.push_back({component, count, write, chunk});
  };
  for_operand_chunks(warpgroup, product, [&](std::uint32_t i, int swizzle_bytes) {
    Chunk& chunk = chunks_[i];
    if (chunk.loaded != 0) {
      need(chunk.load_component, chunk.load_phase, never, i);
      if (chunk.swizzle_bytes != swizzle_bytes && chunk.swizzle_bytes != any_swizzle)
        fail("wgmma descriptor: " + where(i * chunk_bytes) + " is read with a swizzle of " + to_string(swizzle_bytes) +
             " bytes, but " + descriptions_[chunk.loaded] + " wrote it with one of " + to_string(chunk.swizzle_bytes));
    }
    for (std::uint32_t w = i * (chunk_bytes / word_bytes); chunk.ordinary && w < (i + 1) * (chunk_bytes / word_bytes);
         ++w) {
      const Word& word = words_[w];
      if (word.unfenced && !self().at_fence.knows(word.writer, word.written))
        fail(descriptions_[product.id] + " reads what " + component_name(word.writer) +
             " wrote without fence_async_shared (" + where(i * chunk_bytes) + ")");
      if (word.written != 0) need(word.writer, word.unfenced ? never : word.ready(), word.written, i);
    }
    ++chunk.async_reads;
    chunk.reader = product.id;
    warpgroup.read[i] = number;
  });
}

void Cluster::wgmma(hopper::Element element, int columns, bool accumulate, void* d, bool f16_sums, std::uint64_t a,
                    const std::uint32_t* a_registers, std::uint64_t b, bool b_across, bool a_across) {
  yield();
  Thread& thread = self();
  Warpgroup& warpgroup = *warpgroups_[std::size_t(thread.warpgroup())];
  if (!thread.fenced) fail("wgmma without wgmma.fence after the registers were last touched");
  if (columns % 8 != 0 || columns < 8 || columns > 256)
    fail("wgmma: N is " + to_string(columns) + "; it must be a multiple of 8 up to 256");
  const auto check_descriptor = [this](std::uint64_t bits) {
    if (Descriptor(bits).swizzle_bytes == 0 || (bits >> 49 & 7) != 0)
      fail("wgmma descriptor: only swizzled operands (32, 64, 128 bytes) with base offset 0 are modelled");
  };
  check_descriptor(b);
  if (a_registers == nullptr) check_descriptor(a);
  if (element == hopper::Element::e4m3 && (a_across || b_across))
    fail("wgmma: operands of e4m3 must be contiguous along the depth");

  const std::size_t index = thread.products++;
  if (index == warpgroup.first + warpgroup.products.size()) {
    Product product;
    product.element = element;
    product.columns = columns;
    product.accumulate = accumulate;
    product.f16_sums = f16_sums;
    product.a = a;
    product.b = b;
    product.a_in_registers = a_registers != nullptr;
    product.b_across = b_across;
    product.a_across = a_across;
    begin_product(warpgroup, product, std::uint32_t(index + 1));
    warpgroup.products.push_back(std::move(product));
  }
  Product& product = warpgroup.products[index - warpgroup.first];
  if (product.element != element || product.columns != columns || product.accumulate != accumulate ||
      product.f16_sums != f16_sums || product.b != b || product.b_across != b_across || product.a_across != a_across ||
      product.a_in_registers != (a_registers != nullptr) || (!product.a_in_registers && product.a != a))
    fail("wgmma: the warpgroup's threads disagree about the instruction");
  for (const Product::Need& need : product.needs)
    if (!thread.clock.knows(need.component, need.count) && !thread.at_fence.knows(need.component, need.write)) {
      const Chunk& chunk = chunks_[need.chunk];
      fail("race: " + descriptions_[product.id] + " reads " + where(need.chunk * chunk_bytes) + ", " +
           (need.component < threads_.size()
                ? "not ordered after the fence of " + component_name(need.component) + ", which wrote it"
                : "without having waited for " + descriptions_[chunk.loaded]));
    }
  const auto lane = std::size_t(thread.index % warpgroup_threads);
  product.d[lane] = d;
  product.a_registers[lane] = a_registers;
  if (a_registers) std::copy(a_registers, a_registers + 4, product.a_at_issue[lane].begin());
  product.ready = std::max(product.ready, thread.time);

  auto in_flight =
      std::find_if(thread.in_flight.begin(), thread.in_flight.end(), [d](const auto& entry) { return entry.d == d; });
  if (in_flight == thread.in_flight.end()) {
    std::vector<std::uint32_t> saved(std::size_t(columns / (f16_sums ? 4 : 2)));
    const std::vector<std::uint32_t> poison(saved.size(), poison_bits);
    std::memcpy(saved.data(), d, saved.size() * sizeof(std::uint32_t));
    std::memcpy(d, poison.data(), poison.size() * sizeof(std::uint32_t));
    thread.in_flight.push_back({d, std::move(saved), index + 1});
  } else {
    in_flight->last = index + 1;
  }

  if (++product.issued < warpgroup_threads) return;

  // The whole warpgroup has issued it.
  Shadow& shadow = warpgroup.shadows[product.d[0]];
  if (shadow.holders == 0) {
    shadow.columns = columns;
    shadow.f16 = f16_sums;
    shadow.tile.assign(std::size_t(64 * columns), 0.0f);
    for (int t = 0; t < warpgroup_threads; ++t) {
      const Thread& other = *threads_[std::size_t(warpgroup.index * warpgroup_threads + t)];
      const auto entry = std::find_if(other.in_flight.begin(), other.in_flight.end(),
                                      [&](const auto& e) { return e.d == product.d[std::size_t(t)]; });
      if (entry == other.in_flight.end()) fail("wgmma: the warpgroup's threads disagree about the accumulator");
      for (int i = 0; i < columns / 2; ++i) {
        const auto saved = [&](int word) { return entry->saved[std::size_t(word)]; };
        *shadow.of(t, i) =
            f16_sums ? to_float(Half{std::uint16_t(saved(i / 2) >> 16 * (i % 2))}) : std::bit_cast<float>(saved(i));
      }
    }
  }
  shadow.holders = warpgroup_threads;
  const double duration = columns * product_cycles_per_column;
  double& free = sm().tensor_core_free;
  free = std::max(free, product.ready) + duration;
  product.finish = free;
  counters_.wgmma_instructions += 1;
  counters_.wgmma_flops += std::uint64_t(2 * 64 * columns * 16 * hopper::per_16_bits(element));
  counters_.wgmma_b_bytes += std::uint64_t(columns * 32);
  if (!product.a_in_registers) counters_.wgmma_a_bytes += 64 * 32;
  record(warpgroup.rank, "tensor core",
         (product.a_in_registers ? "PV " : "QK ") + string("warpgroup ") + to_string(warpgroup.index) +
             (product.block >= 0 ? " block " + to_string(product.block) : ""),
         product.finish - duration, product.finish);
  if (options_.completion == Completion::eager)
    while (next_product_ready(warpgroup)) complete_product(warpgroup);
  wake(&warpgroup, product.ready);
}

void Cluster::wgmma_commit() {
  yield();
  self().groups.push_back(self().products);
}

bool Cluster::next_product_ready(const Warpgroup& warpgroup) const {
  const std::size_t next = warpgroup.completed - warpgroup.first;
  return next < warpgroup.products.size() && warpgroup.products[next].issued == warpgroup_threads;
}

void Cluster::compute(Warpgroup& warpgroup, Product& product) {
  Shadow& shadow = warpgroup.shadows.at(product.d[0]);
  const int n = product.columns;
  const std::vector<float>& value = values_of(product.element);
  // What is 16 bits in shared memory or in half a register is `packed` elements, neighbours along the depth.
  const int packed = hopper::per_16_bits(product.element), depth = 16 * packed;
  const auto unpack = [&](std::uint32_t bits, int i) { return value[packed == 1 ? bits : bits >> 8 * i & 0xff]; };
  const auto load = [&](std::uint32_t address, int swizzle_bytes) {
    std::uint16_t bits;
    std::memcpy(&bits, shared_ + offset_of(warpgroup.rank, swizzled(address, swizzle_bytes)), 2);
    return bits;
  };
  float a[64][32];
  std::vector<float> b(std::size_t(depth * n));
  const Descriptor b_matrix(product.b);
  if (product.a_in_registers) {
    for (int t = 0; t < warpgroup_threads; ++t) {
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t bits = product.a_registers[std::size_t(t)][i];
        if (bits != product.a_at_issue[std::size_t(t)][std::size_t(i)])
          fail("race: " + component_name(std::size_t(warpgroup.index * warpgroup_threads + t)) +
               " overwrote a register A operand of " + descriptions_[product.id] + " before it was retired by a wait");
        const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i % 2), first = packed * (2 * (t % 4) + 8 * (i / 2));
        for (int half = 0; half < 2; ++half)
          for (int k = 0; k < packed; ++k) a[row][first + packed * half + k] = unpack(bits >> 16 * half & 0xffff, k);
      }
    }
  } else {
    const Descriptor a_matrix(product.a);
    for (int i = 0; i < 64; ++i)
      for (int k = 0; k < depth; ++k)
        a[i][k] = unpack(
            load(product.a_across ? a_matrix.n_major(k, i) : a_matrix.k_major(i, k / packed), a_matrix.swizzle_bytes),
            k % packed);
  }
  for (int k = 0; k < depth; ++k)
    for (int j = 0; j < n; ++j)
      b[std::size_t(k * n + j)] = unpack(
          load(product.b_across ? b_matrix.n_major(k, j) : b_matrix.k_major(j, k / packed), b_matrix.swizzle_bytes),
          k % packed);
  for (int i = 0; i < 64; ++i) {
    float* row = shadow.tile.data() + i * n;
    if (!product.accumulate) std::fill(row, row + n, 0.0f);
    for (int k = 0; k < depth; ++k) {
      const float factor = a[i][k];
      const float* column = b.data() + k * n;
      for (int j = 0; j < n; ++j) row[j] += factor * column[j];
    }
    if (product.f16_sums)
      for (int j = 0; j < n; ++j) row[j] = to_float(from_float<Half>(row[j]));
  }
}

void Cluster::complete_product(Warpgroup& warpgroup) {
  Product& product = warpgroup.products[warpgroup.completed - warpgroup.first];
  compute(warpgroup, product);
  for_operand_chunks(warpgroup, product, [&](std::uint32_t i, int) { --chunks_[i].async_reads; });
  ++warpgroup.completed;
  warpgroup.completed_time = product.finish;
  if (options_.completion == Completion::eager) {
    for (int t = 0; t < warpgroup_threads; ++t)
      publish(warpgroup, *threads_[std::size_t(warpgroup.index * warpgroup_threads + t)], product.d[std::size_t(t)]);
  }
  wake(&warpgroup, product.finish);
  // Drop what nobody will look at again.
  while (warpgroup.products.size() > 64 && warpgroup.first < warpgroup.completed) {
    warpgroup.products.pop_front();
    ++warpgroup.first;
  }
}

/// Gives a thread its part of a finished accumulator.
void Cluster::publish(Warpgroup& warpgroup, Thread& thread, void* d) {
  const auto entry =
      std::find_if(thread.in_flight.begin(), thread.in_flight.end(), [d](const auto& e) { return e.d == d; });
  if (entry == thread.in_flight.end() || entry->last > warpgroup.completed) return;
  const Product& product = warpgroup.products[entry->last - 1 - warpgroup.first];
  Shadow& shadow = warpgroup.shadows.at(product.d[0]);
  const int t = thread.index % warpgroup_threads;
  std::vector<std::uint32_t> words(entry->saved.size());
  std::memcpy(words.data(), d, words.size() * sizeof(std::uint32_t));
  for (const std::uint32_t word : words)
    if (word != poison_bits)
      fail("race: " + component_name(accesses_of(thread.index)) + " wrote to an accumulator of " +
           descriptions_[product.id] + " while it was in flight");
  for (int i = 0; i < int(words.size()); ++i) {
    const auto half = [&](int e) { return std::uint32_t(from_float<Half>(*shadow.of(t, 2 * i + e)).bits); };
    words[std::size_t(i)] = shadow.f16 ? half(0) | half(1) << 16 : std::bit_cast<std::uint32_t>(*shadow.of(t, i));
  }
  std::memcpy(d, words.data(), words.size() * sizeof(std::uint32_t));
  thread.in_flight.erase(entry);
  if (--shadow.holders == 0) warpgroup.shadows.erase(product.d[0]);
}

void Cluster::wgmma_wait(int pending) {
  yield();
  Thread& thread = self();
  flush_compute(thread);
  Warpgroup& warpgroup = *warpgroups_[std::size_t(thread.warpgroup())];
  const std::size_t needed =
      thread.groups.size() > std::size_t(pending) ? thread.groups[thread.groups.size() - 1 - std::size_t(pending)] : 0;
  const double begin = thread.time;
  while (warpgroup.completed < needed) {
    if (options_.completion != Completion::timed && next_product_ready(warpgroup))
      complete_product(warpgroup);
    else
      block(&warpgroup, "wgmma (at most " + to_string(pending) + " groups in flight)");
  }
  if (thread.lane() == 0 && thread.time > begin)
    record(thread.rank, "warpgroup " + to_string(thread.warpgroup()) + " waits", "wgmma", begin, thread.time);
  thread.clock.raise(products_retired_by(thread.warp()), std::uint32_t(needed));
  thread.compute_begin = thread.time;
  thread.fenced = false;
}

void Cluster::wgmma_readable(void* d, int columns, int pending) {
  Thread& thread = self();
  Warpgroup& warpgroup = *warpgroups_[std::size_t(thread.warpgroup())];
  const auto entry =
      std::find_if(thread.in_flight.begin(), thread.in_flight.end(), [d](const auto& e) { return e.d == d; });
  if (entry == thread.in_flight.end()) return;
  if (entry->last > warpgroup.completed)
    fail("wgmma_wait<" + to_string(pending) + "> names an accumulator (64 x " + to_string(columns) +
         ") whose product may still be in flight");
  publish(warpgroup, thread, d);
}

// ---- trace
// -----------------------------------------------------------------------------------------------------------------------

void Cluster::record(int rank, const string& track, const string& event_name, double begin, double end) {
  if (options_.trace && rank == 0) events_.push_back({track, event_name, begin, end});
}

/// Closes the stretch of ordinary work that ends at a primitive.
void Cluster::flush_compute(Thread& thread) {
  if (options_.trace && thread.index % warpgroup_threads == 0 && thread.time > thread.compute_begin &&
      (thread.has_exp2 || thread.has_convert))
    record(thread.rank, "warpgroup " + to_string(thread.warpgroup()), thread.has_exp2 ? "softmax" : "rescale, convert",
           thread.compute_begin, thread.time);
  thread.has_exp2 = thread.has_convert = false;
  thread.compute_begin = thread.time;
}

}  // namespace fa3::simulator
