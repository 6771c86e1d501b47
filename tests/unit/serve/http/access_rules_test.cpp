// Who may use the server, and which handler takes a request.
#include "serve/http/access_rules.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "serve/http/exchange.h"
#include "serve/http/router.h"

namespace lfm2::test {
namespace {

using http::AccessRules;
using http::Request;

int refusal(const AccessRules& rules, const http::Fields& fields, const std::string& path = "/v1/models") {
  Request request{.method = "POST", .path = path};
  for (const auto& [name, value] : fields) request.headers.add(name, value);
  const auto answer = rules.refusal(request);
  if (answer && answer->status == 401) {
    EXPECT_EQ(answer->headers.at(0), std::pair(std::string("WWW-Authenticate"), std::string("Bearer")));
  }
  return answer ? answer->status : 200;
}

TEST(AccessRulesTest, WithAKey) {
  const AccessRules rules({.api_keys = {"first", "second-key"}, .open_paths = {"/health"}});
  EXPECT_EQ(refusal(rules, {{"authorization", "Bearer first"}}), 200);
  EXPECT_EQ(refusal(rules, {{"Authorization", "bearer  second-key"}}), 200);
  // The host does not matter: a page from elsewhere does not know the key.
  EXPECT_EQ(refusal(rules, {{"Host", "evil"}, {"Origin", "http://evil"}, {"Authorization", "Bearer first"}}), 200);
  for (const char* wrong : {"Bearer", "Bearer ", "Bearer firs", "Bearer firstfirst", "Bearer first ", "Basic first",
                            "first", "", "Bearer firsT", "Bearer first second-key", "Bearer\tfirst"})
    EXPECT_EQ(refusal(rules, {{"Authorization", wrong}}), 401) << wrong;
  EXPECT_EQ(refusal(rules, {}), 401);
  EXPECT_EQ(refusal(rules, {}, "/health"), 200);
  EXPECT_EQ(refusal(rules, {}, "/health/"), 401);
}

TEST(AccessRulesTest, KeysThatCannotBeSent) {
  for (const char* key : {"", "a b", "a\n", "caf\xc3\xa9"}) {
    try {
      const AccessRules rules({.api_keys = {"good", key}});
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
    }
  }
}

TEST(AccessRulesTest, WithoutAKeyTheHostIsOneOfOurs) {
  const AccessRules rules({.own_names = {"node17"}});
  for (const char* own : {"localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.0.0.1", "[::1]:8000", "[::1]",
                          "node17:9000", "Node17", "node17.:9000", "10.1.2.3:80"})
    EXPECT_EQ(refusal(rules, {{"Host", own}}), 200) << own;
  for (const char* other : {"evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "",
                            "localhost:80:80", "[::1", "[localhost]", "::1", "localhost:x", "node17.evil",
                            "a@localhost", "[127.0.0.1]", "0x7f.1", "localhost:123456", "localhost "})
    EXPECT_EQ(refusal(rules, {{"Host", other}}), 403) << other;
  EXPECT_EQ(refusal(rules, {}), 403);
}

TEST(AccessRulesTest, WithoutAKeyTheOriginIsOurs) {
  const AccessRules rules({});
  EXPECT_EQ(refusal(rules, {{"Host", "localhost:8000"}, {"Origin", "http://localhost:8000"}}), 200);
  EXPECT_EQ(refusal(rules, {{"Host", "[::1]:8000"}, {"Origin", "http://[::1]:8000"}}), 200);
  EXPECT_EQ(refusal(rules, {{"Host", "localhost:8000"}, {"Origin", "https://localhost:8000"}}), 200)
      << "behind a proxy";
  for (const char* other : {"http://evil.example", "http://localhost:3000", "http://127.0.0.1:8000", "null", "",
                            "http://localhost", "file://", "http://localhost:8000.evil.example"})
    EXPECT_EQ(refusal(rules, {{"Host", "localhost:8000"}, {"Origin", other}}), 403) << other;
}

TEST(AccessRulesTest, PagesThatAreAllowed) {
  const http::Cors cors({"https://app.example", "http://localhost:3000"});
  const AccessRules rules({.cors = &cors});
  EXPECT_EQ(refusal(rules, {{"Host", "localhost:8000"}, {"Origin", "https://app.example"}}), 200);
  EXPECT_EQ(refusal(rules, {{"Host", "localhost:8000"}, {"Origin", "https://app.example.evil"}}), 403);
  EXPECT_EQ(refusal(rules, {{"Host", "evil"}, {"Origin", "https://app.example"}}), 403);
}

http::Fields fields_of(const http::Cors& cors, const std::string& origin) {
  Request request{.method = "POST", .path = "/v1/completions"};
  if (!origin.empty()) request.headers.add("Origin", origin);
  return cors.fields(request);
}

TEST(CorsTest, FieldsOfEveryAnswer) {
  const std::pair<std::string, std::string> vary{"Vary", "Origin"},
      exposed{"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"};
  EXPECT_EQ(fields_of(http::Cors({}), "https://app.example"), http::Fields{});
  const http::Cors one({"https://app.example"});
  EXPECT_EQ(fields_of(one, ""), http::Fields{vary});
  EXPECT_EQ(fields_of(one, "https://other.example"), http::Fields{vary});
  EXPECT_EQ(fields_of(one, "https://app.example"),
            (http::Fields{vary, {"Access-Control-Allow-Origin", "https://app.example"}, exposed}));
  EXPECT_EQ(fields_of(http::Cors({"*"}), "https://x"), (http::Fields{{"Access-Control-Allow-Origin", "*"}, exposed}));
}

TEST(CorsTest, PreflightNeedsAnAllowedOrigin) {
  const http::Cors cors({"https://app.example"});
  Request request{.method = "OPTIONS", .path = "/v1/completions"};
  request.headers.add("Origin", "https://app.example");
  EXPECT_FALSE(cors.preflight(request)) << "a plain question for the methods";
  request.headers.add("Access-Control-Request-Method", "POST");
  request.headers.add("Access-Control-Request-Headers", "authorization,content-type");
  const std::optional<http::Response> answer = cors.preflight(request);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 204);
  EXPECT_EQ(answer->headers.at(1),
            std::pair(std::string("Access-Control-Allow-Headers"), std::string("authorization,content-type")));
  request.headers.set("Origin", "https://other.example");
  EXPECT_FALSE(cors.preflight(request));
}

TEST(AccessRulesTest, ComparesAllOfTheText) {
  EXPECT_TRUE(http::equal_in_constant_time("secret", "secret"));
  for (const char* other : {"", "s", "secre", "secret ", "secretsecret", "Secret", "xecret"})
    EXPECT_FALSE(http::equal_in_constant_time("secret", other)) << other;
  EXPECT_FALSE(http::equal_in_constant_time("", ""));
}

class RouterTest : public ::testing::Test {
 protected:
  RouterTest() {
    for (const auto& [method, path] : {std::pair("GET", "/v1/models"), std::pair("GET", "/v1/models/*"),
                                       std::pair("POST", "/v1/completions"), std::pair("GET", "/")})
      router_.add(method, path, [this, name = std::string(path)](Request&&, const http::Responder&) { taken_ = name; });
  }
  // The path of the handler, or the status and the methods that are allowed.
  std::string route(const std::string& method, const std::string& path) {
    Request request{.method = method, .path = path};
    if (const auto answer = router_.refusal(request))
      return std::to_string(answer->status) + (answer->headers.empty() ? "" : " " + answer->headers[0].second);
    const auto shared = std::make_shared<http::Shared>(http::Limits{});
    router_.handle(std::move(request),
                   http::Responder(std::make_shared<http::Exchange>(shared, http::Exchange::Client{}, [] {})));
    return taken_;
  }

  http::Router router_;
  std::string taken_;
};

TEST_F(RouterTest, FindsTheHandler) {
  EXPECT_EQ(route("GET", "/v1/models"), "/v1/models");
  EXPECT_EQ(route("HEAD", "/v1/models"), "/v1/models");
  EXPECT_EQ(route("GET", "/v1/models/a"), "/v1/models/*");
  EXPECT_EQ(route("GET", "/v1/models/a/b%2f"), "/v1/models/*");
  EXPECT_EQ(route("GET", "/v1/models/*"), "/v1/models/*");
  EXPECT_EQ(route("POST", "/v1/completions"), "/v1/completions");
  EXPECT_EQ(route("GET", "/"), "/");
}

TEST_F(RouterTest, SaysWhatIsThere) {
  EXPECT_EQ(route("GET", "/v1/modelsx"), "404");
  EXPECT_EQ(route("GET", "/v1/models/"), "404");
  EXPECT_EQ(route("GET", "//"), "404");
  EXPECT_EQ(route("OPTIONS", "/v2"), "404");
  EXPECT_EQ(route("GET", "/v1/completions"), "405 OPTIONS, POST");
  EXPECT_EQ(route("BREW", "/"), "405 GET, HEAD, OPTIONS");
  EXPECT_EQ(route("OPTIONS", "/v1/completions"), "204 OPTIONS, POST");
  EXPECT_EQ(route("OPTIONS", "*"), "204 GET, HEAD, OPTIONS, POST");
}

}  // namespace
}  // namespace lfm2::test
