// The one source of chance of a simulation: the same seed gives the same numbers on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvartal::sim {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull) {}

  // splitmix64
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  bool Chance(uint32_t percent) { return Below(100) < percent; }
  template <typename Array>
  auto& Pick(Array& from) {
    return from[Below(std::size(from))];
  }

 private:
  uint64_t state_;
};

}  // namespace kvartal::sim
