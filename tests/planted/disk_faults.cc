#include "tests/planted/disk_faults.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "daemon/base/check.h"
#include "tests/support/faulty_block_file.h"

namespace kvartal::testing {
namespace {

// Tells how many faults there were. Confined to the engine loop.
class CountedFaults : public FaultyBlockFile {
 public:
  using FaultyBlockFile::FaultyBlockFile;
  ~CountedFaults() override {
    std::fprintf(stderr, "disk faults: %llu of %llu transfers\n", static_cast<unsigned long long>(faults()),
                 static_cast<unsigned long long>(transfers_));
  }
  bool Submit(device::BlockIo io) override {
    ++transfers_;
    return FaultyBlockFile::Submit(std::move(io));
  }

 private:
  uint64_t transfers_ = 0;
};

}  // namespace

std::unique_ptr<device::BlockFile> WithDiskFaults(std::unique_ptr<device::BlockFile> file, Executor* executor) {
  auto faulty = std::make_unique<CountedFaults>(std::move(file), executor);
  const char* const text = std::getenv("KVARTAL_DISK_FAULTS");
  DiskFaultRates rates;
  uint32_t seed = 1;
  const std::pair<const char*, uint32_t*> known[] = {{"seed", &seed},
                                                     {"io_error", &rates.io_error},
                                                     {"short", &rates.short_transfer},
                                                     {"torn", &rates.torn_write},
                                                     {"flip", &rates.bit_flip},
                                                     {"no_space", &rates.no_space},
                                                     {"delayed", &rates.delayed}};
  const std::vector<std::string> words = absl::StrSplit(text == nullptr ? "" : text, ',', absl::SkipEmpty());
  for (const std::string& word : words) {
    const std::pair<std::string, std::string> setting = absl::StrSplit(word, absl::MaxSplits('=', 1));
    bool taken = false;
    for (const auto& [name, value] : known) {
      if (setting.first == name) taken = absl::SimpleAtoi(setting.second, value);
    }
    KV_CHECK(taken);
  }
  faulty->SetFaultRates(rates, seed);
  faulty->SetReorder(true, seed);
  return faulty;
}

}  // namespace kvartal::testing
