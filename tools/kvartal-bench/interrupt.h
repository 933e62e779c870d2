// What must be put right when the user presses Ctrl-C: folders removed, system settings restored.
// Thread-safe. Undo steps run newest first, on one thread of their own, then the process ends with status 130.
#pragma once

#include <functional>

namespace kvartal::bench {

// Blocks SIGINT and SIGTERM in this and all later threads and watches for them. Call first thing in main.
void WatchInterrupts();
// In a forked child: the default reaction again.
void ForgetInterrupts();

// While it lives, `undo` runs when the process is interrupted. Its destructor does not run `undo`.
class UndoOnInterrupt {
 public:
  explicit UndoOnInterrupt(std::function<void()> undo);
  ~UndoOnInterrupt();
  UndoOnInterrupt(const UndoOnInterrupt&) = delete;
  UndoOnInterrupt& operator=(const UndoOnInterrupt&) = delete;

 private:
  int key_;
};

}  // namespace kvartal::bench
