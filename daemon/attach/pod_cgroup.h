// Which pod a process is in, by the kernel's word: a pure reader of /proc/PID/cgroup. /proc/PID/mountinfo would say it
// too and is not asked: a workload can forge it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvartal::attach {

// The UID of the pod, in lower case with dashes; "" for a process outside of pods. None when that cannot be told: the
// text is empty, or names several pods. A workload that may make cgroups below its own could name one of them after
// somebody else's pod, but cannot hide its own above it.
std::optional<std::string> PodOfCgroup(std::string_view text);

// The text of /proc/PID/cgroup, "" when it cannot be read.
std::string ReadCgroup(uint32_t pid);

}  // namespace kvartal::attach
