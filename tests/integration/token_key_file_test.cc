// The key set as a file that somebody writes, badly at times.
#include "daemon/process/token_key_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "daemon/base/limits.h"
#include "tests/support/daemon_process.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/token_issuer.h"

namespace kvartal::process {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TokenKeyFileTest : public ::testing::Test {
 protected:
  void SetUp() override { loop_ = *EventLoop::Create(&clock_); }
  void Open() {
    file_ = std::make_unique<TokenKeyFile>(path_, loop_.get(),
                                           [this](token::KeySet keys) { told_.push_back(keys.size()); });
  }
  // One look at the file, and what follows from it.
  void Look() {
    clock_.AdvanceMs(kTokenKeysPollMs);
    loop_->RunOnce(0);
    while (file_->reading()) ::usleep(1000);
    loop_->RunOnce(0);
  }
  void Write(const std::string& text) { testing::WriteFile(path_, text); }

  ManualClock clock_;
  const testing::ScratchDir dir_;
  const std::string path_ = dir_.File("jwks.json");
  std::unique_ptr<EventLoop> loop_;
  std::vector<size_t> told_;  // keys of each set
  std::unique_ptr<TokenKeyFile> file_;
};

TEST_F(TokenKeyFileTest, KeysAreThereBeforeTheFirstClientAndFollowTheFile) {
  testing::TokenIssuer issuer;
  Write(issuer.Jwks());
  Open();
  EXPECT_THAT(told_, ElementsAre(1u)) << "at once";
  EXPECT_EQ(file_->last_error(), "");
  Look();
  EXPECT_THAT(told_, ElementsAre(1u)) << "nothing has changed";
  issuer.AddKey("key-2", "ES256");
  Write(issuer.Jwks());
  Look();
  EXPECT_THAT(told_, ElementsAre(1u, 2u));
}

TEST_F(TokenKeyFileTest, AFileThatIsBadOrGoneTakesNothingAway) {
  Open();
  EXPECT_THAT(told_, IsEmpty());
  EXPECT_THAT(file_->last_error(), HasSubstr(path_));
  testing::TokenIssuer issuer;
  const std::string good = issuer.Jwks();
  Write(good);
  Look();
  EXPECT_EQ(file_->last_error(), "");
  // Cut off, as by a writer that is not done; then gone.
  Write(good.substr(0, good.size() / 2));
  Look();
  EXPECT_THAT(file_->last_error(), HasSubstr("not a JWKS"));
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  Look();
  EXPECT_THAT(file_->last_error(), HasSubstr("cannot be opened"));
  EXPECT_THAT(told_, ElementsAre(1u)) << "the last good set, and nothing since";
  Write(good);
  Look();
  EXPECT_EQ(file_->last_error(), "");
}

}  // namespace
}  // namespace kvartal::process
