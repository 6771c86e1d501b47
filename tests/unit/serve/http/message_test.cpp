// Parts of requests that handlers take apart themselves.
#include "serve/http/message.h"

#include <gtest/gtest.h>

namespace lfm2::http {
namespace {

TEST(MessageTest, PathsAreDecoded) {
  EXPECT_EQ(decoded("/v1/models/LiquidAI%2FLFM2-8B-A1B"), "/v1/models/LiquidAI/LFM2-8B-A1B");
  EXPECT_EQ(decoded("%41%e4%B8%ad+"), "A\xe4\xb8\xad+");
  for (const char* path : {"", "/", "%", "%4", "%g1", "%1g", "%-1", "%+1", "%%", "a%2"}) EXPECT_EQ(decoded(path), path);
}

}  // namespace
}  // namespace lfm2::http
