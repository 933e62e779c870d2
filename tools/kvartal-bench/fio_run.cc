#include "tools/kvartal-bench/fio_run.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "daemon/base/mapping.h"
#include "daemon/base/unique_fd.h"
#include "daemon/base/units.h"

namespace kvartal::bench {
namespace {

constexpr uint64_t kPrewriteChunkBytes = 8 * kMiB;

struct PipeClose {
  void operator()(std::FILE* file) const { ::pclose(file); }
};

}  // namespace

absl::StatusOr<double> RateFromFioJson(const std::string& text, bool write) {
  const size_t start = text.find('{');
  if (start == std::string::npos) return absl::InternalError("fio printed no JSON");
  const nlohmann::json parsed = nlohmann::json::parse(text.substr(start), nullptr, false);
  const auto rate = nlohmann::json::json_pointer(write ? "/jobs/0/write/bw_bytes" : "/jobs/0/read/bw_bytes");
  if (parsed.is_discarded() || !parsed.contains(rate) || !parsed[rate].is_number()) {
    return absl::InternalError(absl::StrCat("fio's JSON has no ", rate.to_string()));
  }
  const double bytes_per_second = parsed[rate].get<double>();
  if (bytes_per_second <= 0) return absl::InternalError("fio moved no bytes");
  return bytes_per_second;
}

absl::StatusOr<double> RunFio(const FioJob& job) {
  if (job.path.find('\'') != std::string::npos)
    return absl::InvalidArgumentError("a quote in the path of the data file");
  const std::string command =
      absl::StrCat("fio --name=ceiling --filename='", job.path, "' --rw=", job.write ? "write" : "read",
                   " --bs=", job.io_bytes, " --size=", RoundDown(job.total_bytes, job.io_bytes),
                   " --offset=", job.offset_bytes, " --direct=1 --ioengine=", job.engine, " --iodepth=", job.depth,
                   " --fallocate=none --overwrite=0 --end_fsync=0 --output-format=json 2>/dev/null");
  const std::unique_ptr<std::FILE, PipeClose> pipe(::popen(command.c_str(), "r"));
  if (pipe == nullptr) return absl::InternalError(absl::StrCat("cannot run fio: ", std::strerror(errno)));
  std::string text;
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) > 0;) text.append(buffer.data(), n);
  if (text.empty()) return absl::NotFoundError("fio is not there or refused to run: apt-get install fio");
  return RateFromFioJson(text, job.write);
}

absl::Status Prewrite(const std::string& path, uint64_t bytes) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600));
  // A folder on a file system without O_DIRECT: still a file to measure, and fio will say so too.
  if (!fd.valid()) fd.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return absl::InternalError(absl::StrCat("cannot create ", path, ": ", std::strerror(errno)));
  KV_ASSIGN_OR_RETURN(const Mapping zeros, Mapping::Anonymous(kPrewriteChunkBytes));
  for (uint64_t at = 0; at < bytes;) {
    const ssize_t written =
        ::pwrite(fd.get(), zeros.data(), std::min(kPrewriteChunkBytes, bytes - at), static_cast<off_t>(at));
    if (written <= 0) {
      return absl::ResourceExhaustedError(absl::StrCat("cannot write ", bytes, " bytes to ", path, ": ",
                                                       std::strerror(errno), ": choose another disk with --dir"));
    }
    at += static_cast<uint64_t>(written);
  }
  ::fsync(fd.get());
  return absl::OkStatus();
}

}  // namespace kvartal::bench
