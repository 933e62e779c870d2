#include "daemon/attach/frame_codec.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "daemon/base/limits.h"

namespace kvartal::attach {
namespace {

ParsedFrame Parse(FrameCodec* codec, const std::string& bytes) { return codec->Parse(std::as_bytes(std::span(bytes))); }

ParsedFrame ParseFrame(const std::function<void(ClientFrame*)>& fill) {
  FrameCodec codec;
  ClientFrame frame;
  fill(&frame);
  return Parse(&codec, frame.SerializeAsString());
}

TEST(FrameCodecTest, NamesTheVerb) {
  const std::string key(32, 'k');
  EXPECT_EQ(ParseFrame([](ClientFrame* f) { f->mutable_attach()->set_version(1); }).verb, Verb::kAttach);
  EXPECT_EQ(ParseFrame([&](ClientFrame* f) { f->mutable_open_namespace()->set_digest(key); }).verb,
            Verb::kOpenNamespace);
  EXPECT_EQ(ParseFrame([&](ClientFrame* f) { f->mutable_lookup()->set_keys(key); }).verb, Verb::kLookup);
  EXPECT_EQ(ParseFrame([](ClientFrame* f) { f->mutable_load()->set_count(1); }).verb, Verb::kLoad);
  EXPECT_EQ(ParseFrame([](ClientFrame* f) { f->mutable_release(); }).verb, Verb::kRelease);
  EXPECT_EQ(ParseFrame([&](ClientFrame* f) { f->mutable_reserve()->set_keys(key); }).verb, Verb::kReserve);
  EXPECT_EQ(ParseFrame([](ClientFrame* f) { f->mutable_commit()->add_reservations(1); }).verb, Verb::kCommit);
  EXPECT_EQ(ParseFrame([](ClientFrame* f) { f->mutable_abort()->add_reservations(1); }).verb, Verb::kAbort);
  EXPECT_EQ(ParseFrame([](ClientFrame* f) { f->mutable_renew(); }).verb, Verb::kRenew);
  EXPECT_EQ(ParseFrame([](ClientFrame* f) { f->mutable_detach(); }).verb, Verb::kDetach);
  EXPECT_EQ(ParseFrame([](ClientFrame* f) { f->mutable_grant_ack(); }).verb, Verb::kGrantAck);
  EXPECT_EQ(ParseFrame([](ClientFrame* f) { f->mutable_pin(); }).verb, Verb::kPin);
  EXPECT_EQ(ParseFrame([](ClientFrame* f) { f->mutable_hint(); }).verb, Verb::kHint);
}

TEST(FrameCodecTest, SaysWhyAFrameIsBad) {
  FrameCodec codec;
  EXPECT_EQ(Parse(&codec, "\xff\xff\xff\xff garbage").bad, BadFrame::kGarbage);
  EXPECT_EQ(Parse(&codec, std::string(kFrameBytesMax + 1, '\0')).bad, BadFrame::kOversized);
  EXPECT_EQ(ParseFrame([](ClientFrame* f) { f->set_request_id(7); }).bad, BadFrame::kEmpty);
  EXPECT_EQ(ParseFrame([](ClientFrame* f) {
              f->mutable_renew();
              f->mutable_release();
            }).bad,
            BadFrame::kTwoVerbs);
}

TEST(FrameCodecTest, LeasesGivenBackGoWithAVerbAndAreBounded) {
  EXPECT_EQ(ParseFrame([](ClientFrame* f) { f->add_released(7); }).bad, BadFrame::kEmpty);
  const auto renew_with = [](size_t released) {
    return ParseFrame([&](ClientFrame* f) {
      f->mutable_renew();
      for (size_t i = 0; i < released; ++i) f->add_released(i);
    });
  };
  EXPECT_EQ(renew_with(kLeasesPerGroupMax).bad_argument, nullptr);
  EXPECT_NE(renew_with(kLeasesPerGroupMax + 1).bad_argument, nullptr);
}

TEST(FrameCodecTest, ANewerVerbIsUnknownNotGarbage) {
  FrameCodec codec;
  // request_id 5, then field 2000, length-delimited, two bytes.
  const std::string newer = std::string("\x08\x05\x82\x7d\x02hi", 7);
  const ParsedFrame parsed = Parse(&codec, newer);
  EXPECT_EQ(parsed.bad, BadFrame::kUnknownVerb);
  EXPECT_EQ(codec.frame().request_id(), 5u) << "the answer has to name the request";
  // Beside a known verb the unknown field is ignored.
  ClientFrame renew;
  renew.mutable_renew();
  EXPECT_EQ(Parse(&codec, renew.SerializeAsString() + newer).verb, Verb::kRenew);
}

TEST(FrameCodecTest, KeysAreWholeAndBounded) {
  auto lookup = [](size_t bytes) {
    return ParseFrame([&](ClientFrame* f) { f->mutable_lookup()->set_keys(std::string(bytes, 'k')); });
  };
  EXPECT_EQ(lookup(32).bad_argument, nullptr);
  EXPECT_EQ(lookup(32 * kKeysPerFrameMax).bad_argument, nullptr);
  EXPECT_NE(lookup(0).bad_argument, nullptr);
  EXPECT_NE(lookup(33).bad_argument, nullptr);
  EXPECT_NE(lookup(32 * (kKeysPerFrameMax + 1)).bad_argument, nullptr);
  EXPECT_EQ(lookup(33).bad, BadFrame::kNone) << "the session goes on";
}

TEST(FrameCodecTest, OtherArgumentsAreBounded) {
  const std::string key(32, 'k');
  EXPECT_NE(ParseFrame([](ClientFrame* f) { f->mutable_attach()->set_group("short"); }).bad_argument, nullptr);
  EXPECT_NE(ParseFrame([](ClientFrame* f) { f->mutable_attach()->set_client(std::string(129, 'c')); }).bad_argument,
            nullptr);
  EXPECT_NE(ParseFrame([](ClientFrame* f) { f->mutable_open_namespace()->set_digest("short"); }).bad_argument, nullptr);
  EXPECT_NE(ParseFrame([](ClientFrame* f) { f->mutable_load()->set_count(0); }).bad_argument, nullptr);
  EXPECT_NE(ParseFrame([](ClientFrame* f) { f->mutable_load()->set_count(kKeysPerFrameMax + 1); }).bad_argument,
            nullptr);
  EXPECT_NE(ParseFrame([](ClientFrame* f) { f->mutable_commit(); }).bad_argument, nullptr);
  EXPECT_NE(ParseFrame([](ClientFrame* f) { f->mutable_abort(); }).bad_argument, nullptr);
  EXPECT_NE(ParseFrame([&](ClientFrame* f) {
              f->mutable_reserve()->set_keys(key);
              f->mutable_reserve()->set_parent("short");
            }).bad_argument,
            nullptr);
  EXPECT_NE(ParseFrame([&](ClientFrame* f) {
              f->mutable_reserve()->set_keys(key);
              f->mutable_reserve()->set_first_depth(UINT32_MAX);
            }).bad_argument,
            nullptr);
  EXPECT_NE(ParseFrame([](ClientFrame* f) {
              for (uint32_t i = 0; i <= kReservePerFrameMax; ++i) f->mutable_commit()->add_reservations(i);
            }).bad_argument,
            nullptr);
}

TEST(FrameCodecTest, AReusedFrameKeepsNothingOfTheLast) {
  FrameCodec codec;
  ClientFrame first;
  first.mutable_lookup()->set_keys(std::string(64, 'k'));
  first.mutable_lookup()->set_lease(9);
  Parse(&codec, first.SerializeAsString());
  ClientFrame second;
  second.mutable_lookup()->set_keys(std::string(32, 'q'));
  EXPECT_EQ(Parse(&codec, second.SerializeAsString()).verb, Verb::kLookup);
  EXPECT_EQ(codec.frame().lookup().lease(), 0u);
  EXPECT_EQ(codec.frame().lookup().keys(), std::string(32, 'q'));

  codec.NewReply(3).mutable_looked_up()->set_matched(5);
  ServerFrame& reply = codec.NewReply(0);
  EXPECT_EQ(reply.request_id(), 0u);
  EXPECT_FALSE(reply.has_looked_up());
}

TEST(FrameCodecTest, TheLargestAnswersFitAFrame) {
  FrameCodec codec;
  ServerFrame& reply = codec.NewReply(UINT64_MAX);
  v1::Reserved* reserved = reply.mutable_reserved();
  reserved->set_outcomes(std::string(kReservePerFrameMax, '\1'));
  for (uint32_t i = 0; i < kReservePerFrameMax; ++i) {
    reserved->add_reservations(UINT64_MAX);
    reserved->add_offsets(UINT64_MAX);
    reserved->add_generations(UINT32_MAX);
  }
  const std::span<const std::byte> bytes = codec.Serialise(reply);
  EXPECT_LT(bytes.size(), kFrameBytesMax);
  ServerFrame back;
  ASSERT_TRUE(back.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
  EXPECT_EQ(back.reserved().reservations_size(), static_cast<int>(kReservePerFrameMax));
}

TEST(FrameCodecTest, KeysLieWhereThePacketHasThem) {
  const std::string packed = std::string(32, 'a') + std::string(32, 'b');
  const std::span<const BlockKey> keys = KeysOf(packed);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].bytes[31], 'a');
  EXPECT_EQ(keys[1].bytes[0], 'b');
}

}  // namespace
}  // namespace kvartal::attach
