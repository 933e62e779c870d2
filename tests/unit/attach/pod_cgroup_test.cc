#include "daemon/attach/pod_cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>

namespace kvartal::attach {
namespace {

constexpr const char* kUid = "2c48913c-b29f-11e7-9350-020968147796";
constexpr const char* kOther = "fe2a2e1c-b29f-11e7-9350-020968147796";
constexpr const char* kContainer = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961";

struct Row {
  const char* what;
  std::string text;
  std::string pod;
};

std::string Dashless(std::string uid) {
  for (char& c : uid) c = c == '-' ? '_' : c;
  return uid;
}

TEST(PodCgroupTest, EveryFormThatKubeletWritesNamesThePod) {
  const std::string uid = kUid, slice = Dashless(kUid), id = kContainer;
  const Row rows[] = {
      {"v2, systemd, burstable, containerd",
       "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + slice + ".slice/cri-containerd-" + id +
           ".scope\n",
       uid},
      {"v2, systemd, guaranteed, CRI-O", "0::/kubepods.slice/kubepods-pod" + slice + ".slice/crio-" + id + ".scope\n",
       uid},
      {"v2, systemd, besteffort, a container's own cgroup below",
       "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + slice + ".slice/cri-containerd-" + id +
           ".scope/init\n",
       uid},
      {"v2, cgroupfs, burstable", "0::/kubepods/burstable/pod" + uid + "/" + id + "\n", uid},
      {"v2, cgroupfs, guaranteed", "0::/kubepods/pod" + uid + "/" + id + "\n", uid},
      {"v2, private namespace of the reader, cgroupfs", "0::/../../pod" + uid + "/" + id + "\n", uid},
      {"v2, private namespace of the reader, systemd",
       "0::/../../kubepods-burstable-pod" + slice + ".slice/cri-containerd-" + id + ".scope\n", uid},
      {"v1, cgroupfs, many hierarchies",
       "11:hugetlb:/kubepods/burstable/pod" + uid + "/" + id + "\n10:devices:/kubepods/burstable/pod" + uid + "/" + id +
           "\n4:cpu,cpuacct:/kubepods/burstable/pod" + uid + "/" + id + "\n1:name=systemd:/kubepods/burstable/pod" +
           uid + "/" + id + "\n0::/\n",
       uid},
      {"v1, systemd, one hierarchy elsewhere",
       "5:memory:/kubepods.slice/kubepods-pod" + slice + ".slice/docker-" + id +
           ".scope\n3:cpu:/system.slice/containerd.service\n",
       uid},
      {"v1, containerd that does not know of the systemd driver",
       "2:cpu:/system.slice/containerd.service/kubepods-burstable-pod" + slice + ".slice:cri-containerd:" + id + "\n",
       uid},
      {"a node that is itself a container", "0::/docker/" + id + "/kubelet/kubepods/pod" + uid + "/" + id + "\n", uid},
      {"in capitals", "0::/kubepods/pod2C48913C-B29F-11E7-9350-020968147796/" + id + "\n", uid},
      {"without an end of line", "0::/kubepods/pod" + uid + "/" + id, uid},
  };
  for (const Row& row : rows) EXPECT_EQ(PodOfCgroup(row.text), row.pod) << row.what;
}

TEST(PodCgroupTest, WhatIsInNoPodNamesNone) {
  const std::string id = kContainer;
  for (const std::string& text :
       {std::string("0::/\n"), std::string("0::/user.slice/user-1000.slice/session-1.scope\n"),
        "0::/docker/" + id + "\n", "0::/../" + id + "\n", std::string("0::/kubepods/burstable\n"),
        std::string("0::/kubepods/podinfo/x\n"), std::string("0::/kubepods/pod2c48913c-b29f-11e7-9350-02096814779/x\n"),
        std::string("0::/kubepods/pod2c48913c-b29f-11e7-9350-02096814779g/x\n"),
        std::string("0::/kubepods/pod2c48913cb29f-11e7--9350-020968147796/x\n"), std::string("no colons at all"),
        std::string("::::"), std::string(100, '\0'), std::string("\n\n\n")}) {
    EXPECT_EQ(PodOfCgroup(text), "") << text;
  }
}

TEST(PodCgroupTest, ACgroupNamedAfterSomebodyElsesPodTellsNothing) {
  const std::string uid = kUid, other = kOther, id = kContainer;
  EXPECT_EQ(PodOfCgroup("0::/kubepods/pod" + uid + "/" + id + "/kubepods/pod" + other + "/" + id + "\n"), std::nullopt);
  EXPECT_EQ(PodOfCgroup("0::/kubepods/pod" + uid + "/pod" + other + "\n"), std::nullopt);
  EXPECT_EQ(PodOfCgroup("5:cpu:/kubepods/pod" + uid + "/a\n0::/kubepods/pod" + other + "/a\n"), std::nullopt);
  EXPECT_EQ(PodOfCgroup(""), std::nullopt) << "of a process that is gone";
  EXPECT_EQ(PodOfCgroup("0::/kubepods/pod" + uid + "/" + id + "/pod" + uid + "\n"), uid) << "its own name twice";
}

TEST(PodCgroupTest, TheKernelTellsAboutAProcess) {
  EXPECT_NE(ReadCgroup(static_cast<uint32_t>(::getpid())), "");
  EXPECT_EQ(ReadCgroup(UINT32_MAX), "");
}

}  // namespace
}  // namespace kvartal::attach
