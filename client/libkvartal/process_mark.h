// Tells the process that made a client from its forked children, without a system call.
// Any thread.
#pragma once

#include <cstdint>

namespace kvartal::client {

class ProcessMark {
 public:
  // Of the calling process.
  static ProcessMark Here();
  // False in a child that was forked after Here.
  bool IsHere() const;

 private:
  explicit ProcessMark(uint64_t value) : value_(value) {}
  uint64_t value_;
};

}  // namespace kvartal::client
