// A simulated cluster of CTAs, mostly of one: threads, barriers, shared memory and the two asynchronous units (TMA,
// tensor core), adversarial about when asynchronous work completes. docs/simulator.md explains the model; the
// primitives in this folder are thin calls of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "hopper/element.hpp"
#include "hopper/sim/clock.hpp"
#include "hopper/sim/fiber.hpp"
#include "hopper/sim/tensor_map.hpp"
#include "hopper/tensor_map.hpp"

namespace fa3::simulator {

/// When asynchronous work completes.
enum class Completion {
  eager,   // at once: what a thread overwrites too early has been read, what it reads too early is there
  lazy,    // only when somebody waits for it, or nothing else can run: what is read too early is NaN
  random,  // whenever the seed says; threads are interleaved at random as well
  timed    // by a model of the machine's rates: for pictures, not for finding faults
};

struct Options {
  Completion completion = Completion::lazy;
  std::uint64_t seed = 0;
  bool trace = false;
};
const char* name(Completion completion);

/// What a kernel did wrong, in words, with the policy and the seed that show it again.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Sums over a run. Bytes of shared memory unless said.
struct Counters {
  std::uint64_t tma_load_bytes = 0, tma_store_bytes = 0;  // TMA writes to and reads from shared memory
  std::uint64_t wgmma_a_bytes = 0, wgmma_b_bytes = 0;     // operands the tensor core reads
  std::uint64_t wgmma_instructions = 0, wgmma_flops = 0;
  std::uint64_t stmatrix_bytes = 0, ldmatrix_bytes = 0;
  std::uint64_t matrix_phases = 0, bank_conflicts = 0;  // stmatrix/ldmatrix: phases of eight rows, and extra ones
  std::uint64_t ordinary_bytes = 0;                     // load_shared, store_shared, send_word
  std::uint64_t exp2 = 0;                               // per thread
  Counters& operator+=(const Counters& other);
};

/// Something that took time on one of the tracks of the cluster's first CTA; times in cycles of the timed policy's
/// model, else in steps of the scheduler.
struct Event {
  std::string track, name;
  double begin, end;
};

class Cluster {
 public:
  /// CTAs `index` to `index` + `ctas` - 1 of `count`. `threads`: of each, a multiple of 128. `shared_bytes`: size of
  /// the kernel's plan; reads and writes outside are errors.
  Cluster(const Options& options, int index, int count, int threads, std::size_t shared_bytes, int ctas = 1);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Shared memory of the CTA whose thread is running (before run: of the first), 1024-byte aligned, every byte 0xff
  /// (NaN in all types).
  std::byte* shared() const;
  /// Names an object in the first CTA's shared memory, and those in its place in the others', for messages.
  void name_region(const void* object, std::size_t bytes, std::string name);
  /// Names a warpgroup's role for messages.
  void name_warpgroup(int warpgroup, std::string role);
  /// Runs `kernel` on all threads to the end. Throws Failure.
  void run(const std::function<void()>& kernel);

  const Counters& counters() const { return counters_; }
  const std::vector<Event>& events() const { return events_; }

  /// The cluster whose thread is running.
  static Cluster& current();

  // ---- what the primitives call; the contracts are in src/hopper ----
  int thread() const;  // of its CTA
  int cta() const { return first_ + rank(); }
  int cta_count() const { return count_; }
  int rank() const;
  int size() const { return int(sms_.size()); }
  std::uint64_t clock() const;
  bool elect_one();
  void sync_cluster();
  void sync_cta();
  void sync_warp();

  std::uint32_t shared_address(const void* pointer);
  void store_ordinary(void* to, const void* from, std::size_t bytes);
  void load_ordinary(void* to, const void* from, std::size_t bytes);

  void mbarrier_init(std::uint64_t& state, int arrivals);
  void mbarrier_arrive(std::uint64_t& state, int expected_bytes);
  void mbarrier_arrive_remote(std::uint64_t& state, int rank);
  void mbarrier_wait(std::uint64_t& state, int parity);
  void named_barrier(int id, int threads, bool wait);
  void fence_barrier_init();
  void fence_async_shared();
  void registers(int count, bool claim);

  bool warp_any(bool x);
  std::uint32_t quad_exchange(std::uint32_t x);
  std::uint32_t lane_exchange(std::uint32_t x, int mask);
  std::uint32_t warp_max(std::uint32_t x);
  /// A shuffle: what lane 0 gives. `what` names it in messages.
  int from_lane_0(int x, const char* what);
  /// x, which must be the same in all lanes.
  int same_in_warp(int x, const char* what);
  float quad_reduce(float value, bool maximum);
  void account_exp2();
  void account_alu(double warp_cycles, const char* label);

  void stmatrix(std::uint32_t address, const std::uint32_t* fragment, bool transposed);
  void ldmatrix(std::uint32_t address, std::uint32_t* fragment, bool transposed);

  /// ctas: a bit for each CTA of the cluster that gets the box.
  void tma_load(std::uint32_t address, const hopper::TensorMap& map, hopper::Coordinates at, std::uint64_t& barrier,
                unsigned ctas);
  void tma_store(const hopper::TensorMap& map, hopper::Coordinates at, std::uint32_t address, bool add);
  /// 16-byte aligned bytes of global memory, to 16-byte aligned shared memory.
  void bulk_load(void* to, const void* from, int bytes, std::uint64_t& barrier);
  void bulk_add(float* to, const void* from, int bytes);
  /// Other CTAs of the grid run before this one or after it, so only its own threads can still raise the count.
  void wait_for_count(const unsigned& counter, unsigned count);
  void raise_count(unsigned& counter);
  void send_word(std::uint32_t& to, std::uint32_t value, std::uint64_t& barrier, int rank);
  /// `from` is this CTA's, `to` and `barrier` name places in the plan of `rank`.
  void send_bytes(void* to, const void* from, int bytes, std::uint64_t& barrier, int rank);
  void store_commit();
  void store_wait_read(int pending);

  void wgmma_fence();
  /// d: `columns` / 2 floats or, with f16_sums, `columns` / 4 pairs. a_registers: null for SS. accumulate as the
  /// instruction's scale-d, b_across and a_across as its trans-b and trans-a.
  void wgmma(hopper::Element element, int columns, bool accumulate, void* d, bool f16_sums, std::uint64_t a,
             const std::uint32_t* a_registers, std::uint64_t b, bool b_across, bool a_across);
  void wgmma_commit();
  void wgmma_wait(int pending);
  /// After wgmma_wait: this accumulator may be read.
  void wgmma_readable(void* d, int columns, int pending);

  [[noreturn]] void fail(const std::string& message);

 private:
  struct Thread;
  struct Warpgroup;
  struct Product;
  struct Shadow;
  struct Rendezvous;
  struct Region;
  struct Copy;
  struct NamedBarrierState;
  struct Sm;
  struct Abort {};

  // scheduler
  Thread& self() const;
  void yield();
  void block(const void* key, const std::string& what);
  void wake(const void* key, double time);
  void finish_cta(int rank);
  void finish_threads();
  Thread* pick();
  bool complete_something();
  bool complete_timed(double horizon);
  std::string deadlock_report() const;
  template <class OnLast>
  void meet(Rendezvous& rendezvous, int size, const std::string& what, bool orders_memory, OnLast on_last);
  template <class Make>
  std::uint32_t shuffle(std::uint32_t x, const char* what, Make make);

  // what happened before what: components of the threads' clocks
  std::size_t accesses_of(int thread) const { return std::size_t(thread); }
  std::size_t stores_read_of(int thread) const { return threads_.size() + std::size_t(thread); }
  std::size_t products_retired_by(int warp) const { return 2 * threads_.size() + std::size_t(warp); }
  std::size_t phases_of(std::size_t barrier) const { return 2 * threads_.size() + warps_.size() + barrier; }
  void publish_clock(Thread& thread, Clock& to);
  template <class F>
  void check_order(std::uint32_t chunk, bool write, const std::string& what, F&& known);

  // CTAs of the cluster, by rank
  Sm& sm() const;
  std::uint32_t offset_of(int rank, std::uint32_t address) const;
  int rank_at(std::uint32_t offset) const { return int(offset / stride_); }
  std::uint64_t& peer(std::uint64_t& state, int rank, const char* verb);
  void arrive(std::uint64_t& state, int expected_bytes);

  // names
  std::string of_cta(int rank) const;
  std::string where(std::uint32_t offset) const;
  std::string barrier_name(const std::uint64_t& state) const;
  std::string warpgroup_name(int warpgroup) const;
  std::string thread_name(const Thread& thread) const;
  std::string component_name(std::size_t component) const;
  Region* region_at(std::uint32_t offset);

  // shared memory
  void check_range(std::uint32_t address, std::size_t bytes, const char* what);
  void check_generic_access(int rank, std::uint32_t address, std::size_t bytes, bool write, const char* what);
  void check_async_access(std::uint32_t offset, std::size_t bytes, bool write, std::uint32_t id);
  std::uint32_t swizzled(std::uint32_t address, int swizzle_bytes) const;

  // units
  [[noreturn]] void fail_surplus(const std::uint64_t& state, int bytes);
  std::size_t count_on_barrier(Copy& copy, const char* verb);
  void barrier_complete_bytes(const Copy& copy);
  void barrier_check_phase(std::uint64_t& state, double time);
  void check_coordinates(const Copy& copy);
  void start_bulk(Copy copy, void* global, int bytes);
  void start_tma(Copy copy);
  void apply(Copy& copy);
  bool next_product_ready(const Warpgroup& warpgroup) const;
  void begin_product(Warpgroup& warpgroup, Product& product, std::uint32_t number);
  void complete_product(Warpgroup& warpgroup);
  void publish(Warpgroup& warpgroup, Thread& thread, void* d);
  template <class F>
  void for_operand_chunks(const Warpgroup& warpgroup, const Product& product, F&& visit);
  void compute(Warpgroup& warpgroup, Product& product);

  void record(int rank, const std::string& track, const std::string& name, double begin, double end);
  void flush_compute(Thread& thread);

  Options options_;
  int first_, count_;  // CTAs of the grid
  int cta_threads_;
  std::size_t shared_bytes_;
  std::uint32_t stride_;  // bytes from one CTA's shared memory to the next one's
  std::vector<std::byte> storage_;
  std::byte* shared_ = nullptr;
  std::vector<std::unique_ptr<Sm>> sms_;  // of the CTAs, by rank
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<std::unique_ptr<Warpgroup>> warpgroups_;
  std::vector<Thread*> ready_;
  std::unordered_map<const void*, std::vector<Thread*>> waiting_;
  Thread* running_ = nullptr;
  bool aborting_ = false;
  std::string failure_;
  std::mt19937_64 random_;
  double now_ = 0;  // scheduler steps; the timed policy uses the threads' own clocks

  // Per 16-byte chunk of shared memory: the asynchronous work on it.
  struct Chunk {
    std::uint32_t loading = 0;     // id of the TMA load that will write it
    std::uint32_t reader = 0;      // id of the latest asynchronous reader, for messages
    std::uint32_t loaded = 0;      // id of the latest TMA load
    std::uint32_t load_phase = 0;  // count of `load_component`, phases of its barrier, that says it has landed
    std::uint32_t store = 0;       // number of the latest TMA store that reads it, of thread `storer`
    std::uint16_t storer = 0;
    std::uint16_t load_component = 0;
    std::uint32_t sent = 0;  // as load_phase, of the barrier that says the latest send_bytes has read it
    std::uint16_t sent_component = 0;
    std::uint16_t async_reads = 0;   // pending reads by TMA stores, send_bytes and products
    std::uint8_t swizzle_bytes = 0;  // of the latest TMA load
    bool ordinary = false;           // its words have ordinary accesses on record
  };
  // Per 4 bytes: the ordinary accesses since the last TMA load.
  struct Word {
    std::uint32_t written = 0;  // count of component `writer` that the latest write belongs to
    std::uint16_t writer = 0;   // accesses of a thread; of a sent word, phases of its barrier
    bool unfenced = false;
    bool read = false;         // readers_ has who
    std::uint32_t fenced = 0;  // as `written`, of the write's fence_async_shared; 0: a sent word needs none

    /// What who reads it asynchronously must know.
    std::uint32_t ready() const { return fenced != 0 ? fenced : written; }
  };
  std::vector<Chunk> chunks_;
  std::vector<Word> words_;
  std::unordered_map<std::uint32_t, Clock> readers_;  // by word: access counts of the threads that read it
  std::vector<Region> regions_;
  std::unordered_map<std::uint32_t, std::string> descriptions_;  // of asynchronous operations, by id
  std::uint32_t next_id_ = 1;

  struct BarrierRecord {
    std::size_t index = 0;  // in order of initialisation
    int initialiser = 0;
    std::uint32_t initialised = 0;  // access count of the initialiser
    bool fenced = false;
    std::uint32_t phases = 0;  // completed
    Clock arriving, released;  // what those who arrived knew; as of the latest phase completion
    double time = 0;           // of the latest phase completion
  };
  std::map<const std::uint64_t*, BarrierRecord> barriers_;
  BarrierRecord& barrier_record(const std::uint64_t& state, const char* verb);
  std::deque<Copy> copies_;
  std::vector<std::unique_ptr<Rendezvous>> warps_;
  std::unique_ptr<Rendezvous> all_;

  Counters counters_;
  std::vector<Event> events_;
};

}  // namespace fa3::simulator
