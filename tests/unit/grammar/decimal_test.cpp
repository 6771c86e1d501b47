#include "grammar/expression/decimal.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace lfm2::grammar {
namespace {

TEST(Decimal, IsReadAndWrittenExactly) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"0", "0"},
      {"-0", "0"},
      {"0.000", "0"},
      {"-0e99", "0"},
      {"1", "1"},
      {"-12.500", "-12.5"},
      {"1e3", "1000"},
      {"1.5E+2", "150"},
      {"25e-1", "2.5"},
      {"0.00120", "0.0012"},
      {"1e-3", "0.001"},
      {"100", "100"},
      {"123456789012345678901234567890.5", "123456789012345678901234567890.5"}};
  for (const auto& [json, text] : cases) EXPECT_EQ(Decimal::parse(json).text(), text) << json;
  for (const char* wrong : {"", "-", "+1", "01", "1.", ".5", "1e", "1e+", "0x1", "1 ", "NaN", "1e9999999999"})
    EXPECT_THROW(Decimal::parse(wrong), Refusal) << wrong;
  EXPECT_THROW(Decimal::parse("1e100000").text(), Refusal);
}

TEST(Decimal, RandomOnesCompareAndDivideAsIntegersDo) {
  std::mt19937 random(3);
  for (int i = 0; i < 20'000; ++i) {
    const int64_t a = static_cast<int64_t>(random() % 4'000) - 2'000,
                  b = static_cast<int64_t>(random() % 4'000) - 2'000;
    const Decimal x = Decimal::parse(std::to_string(a) + "e-2"), y = Decimal::parse(std::to_string(b) + "e-2");
    ASSERT_EQ(x <=> y, a <=> b) << a << " " << b;
    ASSERT_EQ(x == y, a == b);
    ASSERT_EQ(x.is_integer(), a % 100 == 0);
    ASSERT_EQ(x.floor().text(), std::to_string((a - (a % 100 + 100) % 100) / 100)) << a;
    ASSERT_EQ(x.ceil(), x.negated().floor().negated());
    if (b <= 0) continue;
    ASSERT_EQ(x.is_multiple_of(y), a % b == 0) << a << " " << b;
  }
  EXPECT_TRUE(Decimal::parse("1e308").is_multiple_of(Decimal::parse("0.5")));
  EXPECT_FALSE(Decimal::parse("0.0075001").is_multiple_of(Decimal::parse("0.0001")));
  EXPECT_TRUE(Decimal::parse("1219326311126352690").is_multiple_of(Decimal::parse("1234567890")));
  EXPECT_FALSE(Decimal::parse("1219326311126352691").is_multiple_of(Decimal::parse("1234567890")));
  EXPECT_TRUE(Decimal::parse("-3e300").is_multiple_of(Decimal::parse("1.5e-1000")));
  EXPECT_FALSE(Decimal::parse("1e300").is_multiple_of(Decimal::parse("7e-1000")));
  EXPECT_TRUE(Decimal::parse("4e301").is_multiple_of(Decimal::parse("2e300")));
  EXPECT_FALSE(Decimal::parse("4e299").is_multiple_of(Decimal::parse("2e300")));
  EXPECT_TRUE(Decimal().is_multiple_of(Decimal::parse("2e300")));
  EXPECT_TRUE(Decimal::parse("1999999999999999998").is_multiple_of(Decimal::parse("999999999999999999")));
  EXPECT_THROW(Decimal(2).is_multiple_of(Decimal::parse("1.234567890123456789")), Refusal);
}

// All texts of the form -?digits(.digits)? with few digits, also those that JSON does not have.
std::vector<std::string> spellings() {
  std::vector<std::string> wholes, fractions{""}, all;
  for (int i = 0; i < 10; ++i) wholes.push_back(std::to_string(i));
  for (const char* whole :
       {"00", "01", "10", "11", "12", "19", "20", "25", "47", "99", "100", "101", "119", "120", "999", "1000"})
    wholes.push_back(whole);
  for (int i = 0; i < 10; ++i) fractions.push_back("." + std::to_string(i));
  for (const char* fraction : {".", ".00", ".01", ".05", ".09", ".25", ".49", ".50", ".51", ".75", ".99", ".250",
                               ".500", ".5000", ".499", ".501", ".001"})
    fractions.push_back(fraction);
  for (const char* sign : {"", "-", "+", "--"})
    for (const std::string& whole : wholes)
      for (const std::string& fraction : fractions) all.push_back(sign + whole + fraction);
  return all;
}

void expect_members(const NumberSet& set, const std::string& what) {
  static const std::vector<std::string> all = spellings();
  Expressions expressions;
  const Expr written = number_expression(set, expressions), values = decimal_values(set, expressions);
  const bool is_bounded = set.min || set.max || !set.multiples.empty();
  for (const std::string& text : all) {
    std::optional<Decimal> number;
    try {
      number = Decimal::parse(text);
    } catch (const Refusal&) {
    }
    const bool is_member = number && contains(set, *number);
    ASSERT_EQ(expressions.matches(values, text), is_member) << what << ": " << text;
    ASSERT_EQ(expressions.matches(written, text), is_member && !(set.integer && text.find('.') != text.npos))
        << what << ": " << text;
  }
  EXPECT_EQ(expressions.matches(written, "1e2"), !set.integer && !is_bounded) << what;
}

TEST(NumberSet, AllBoundsHoldForAllSpellings) {
  const std::vector<std::string> bounds = {"0",    "1",    "-1",     "5",       "10",     "-10", "99",
                                           "100",  "-100", "0.5",    "-0.5",    "0.05",   "2.5", "-2.5",
                                           "9.99", "11.5", "-19.25", "120.001", "-999.5", "0.25"};
  for (const bool integer : {false, true})
    for (const bool exclusive : {false, true})
      for (const std::string& bound : bounds) {
        NumberSet low{integer, Decimal::parse(bound), {}, exclusive, false, {}};
        expect_members(low, (exclusive ? "> " : ">= ") + bound);
        NumberSet high{integer, {}, Decimal::parse(bound), false, exclusive, {}};
        expect_members(high, (exclusive ? "< " : "<= ") + bound);
        high.min = Decimal::parse("-10.5");
        expect_members(high, "-10.5 <= … <= " + bound);
      }
  expect_members({}, "all");
  expect_members({true, {}, {}, false, false, {}}, "integers");
}

TEST(NumberSet, MultiplesHoldForAllSpellings) {
  for (const char* step : {"1", "2", "3", "7", "10", "12", "100", "0.5", "0.25", "0.01", "1.5", "2.5", "0.003", "33.3"})
    for (const bool integer : {false, true}) {
      NumberSet set{integer, {}, {}, false, false, {Decimal::parse(step)}};
      expect_members(set, std::string("multiple of ") + step);
      set.min = Decimal::parse("-4.5");
      set.multiples.push_back(Decimal::parse("0.75"));
      expect_members(set, std::string("from -4.5, multiple of 0.75 and ") + step);
    }
}

TEST(NumberSet, EmptySetsAreKnownToBe) {
  Expressions e;
  const auto possible = [&](const NumberSet& set) { return e.possible(number_expression(set, e)); };
  EXPECT_FALSE(possible({false, Decimal(3), Decimal(2), false, false, {}}));
  EXPECT_FALSE(possible({false, Decimal(3), Decimal(3), true, false, {}}));
  EXPECT_TRUE(possible({false, Decimal(3), Decimal(3), false, false, {}}));
  EXPECT_FALSE(possible({true, Decimal::parse("3.1"), Decimal::parse("3.9"), false, false, {}}));
  EXPECT_TRUE(possible({false, Decimal::parse("3.1"), Decimal::parse("3.9"), false, false, {}}));
  EXPECT_FALSE(possible({false, Decimal(1), Decimal(6), false, false, {Decimal(7)}}));
  EXPECT_TRUE(possible({false, Decimal(1), Decimal(7), false, false, {Decimal(7)}}));
  EXPECT_FALSE(possible({true, Decimal(1), Decimal(100), false, true, {Decimal(4), Decimal(25)}}));
}

TEST(NumberSet, LongBoundsAreExact) {
  Expressions e;
  const std::string digits = "9" + std::string(300, '0') + "1";
  const Expr expr = number_expression({true, Decimal::parse(digits), {}, false, false, {}}, e);
  EXPECT_TRUE(e.matches(expr, digits));
  EXPECT_TRUE(e.matches(expr, digits + "0"));
  EXPECT_FALSE(e.matches(expr, "9" + std::string(301, '0')));
  EXPECT_THROW(number_expression({true, Decimal::parse("1e5000"), {}, false, false, {}}, e), Refusal);
  EXPECT_THROW(number_expression({true, {}, {}, false, false, {Decimal(10'001)}}, e), Refusal);
  EXPECT_THROW(number_expression({true, {}, {}, false, false, {Decimal(0)}}, e), Refusal);
  EXPECT_NO_THROW(number_expression({true, {}, {}, false, false, {Decimal(10'000)}}, e));
  const Expr small = number_expression({false, {}, {}, false, false, {Decimal::parse("1e-8")}}, e);
  EXPECT_TRUE(e.matches(small, "12391239123.00000008"));
  EXPECT_FALSE(e.matches(small, "1.000000001"));
}

TEST(NumberSet, IntersectionsHaveTheStricterBounds) {
  std::mt19937 random(5);
  const auto any = [&] {
    NumberSet set;
    set.integer = random() % 4 == 0;
    if (random() % 2 == 0) set.min = Decimal(static_cast<int64_t>(random() % 9) - 4);
    if (random() % 2 == 0) set.max = Decimal(static_cast<int64_t>(random() % 9) - 2);
    set.exclusive_min = random() % 2 == 0;
    set.exclusive_max = random() % 2 == 0;
    if (random() % 3 == 0) set.multiples.push_back(Decimal(1 + static_cast<int64_t>(random() % 4)));
    return set;
  };
  for (int i = 0; i < 2'000; ++i) {
    const NumberSet a = any(), b = any(), common = intersection(a, b);
    for (int64_t number = -20; number <= 20; ++number) {
      const Decimal half = Decimal::parse(std::to_string(number * 5) + "e-1");
      ASSERT_EQ(contains(common, half), contains(a, half) && contains(b, half)) << half.text();
    }
  }
}

}  // namespace
}  // namespace lfm2::grammar
