// The memory plan of a started program: what it says, what `perigee plan` says, and what the process takes.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/http_client.h"
#include "e2e/process.h"
#include "model/kimi_linear/config.h"
#include "testing/http_connection.h"
#include "testing/safetensors_writer.h"

namespace perigee::testing {
namespace {

using Json = nlohmann::json;

constexpr char kTiny[] = PERIGEE_MODELS "/tiny-kimi-linear";
constexpr char kListening[] = "perigee is listening on ";

// A folder of the bundled model's form with 256 experts a layer, of `width`: 147,456 * 5 * width parameters
// in BF16, all small, and 4 million.
void WriteWideModel(const test::TempFolder& folder, int width) {
  namespace fs = std::filesystem;
  for (const auto& entry : fs::directory_iterator(kTiny)) {
    const std::string name = entry.path().filename().string();
    if (name.find("safetensors") == std::string::npos) fs::copy_file(entry.path(), folder.File(name));
  }
  Json config = Json::parse(test::ReadAll(folder.File("config.json")));
  config["num_experts"] = 256;
  config["moe_intermediate_size"] = width;
  folder.Write("config.json", config.dump());
  const auto parsed = model::ReadKimiLinearConfig(folder.path());
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  std::vector<test::WrittenTensor> tensors;
  for (const model::ExpectedTensor& t : model::ExpectedTensors(*parsed)) {
    std::string bytes;
    bytes.reserve(static_cast<size_t>(t.NumElements()) * 2);
    for (int64_t i = 0; i < t.NumElements(); ++i) {
      bytes += static_cast<char>(i * 37 % 251);
      bytes += i % 2 == 0 ? '\x3c' : '\xbc';  // +- 0.008 to 0.03
    }
    tensors.push_back({t.name, "BF16", t.shape, std::move(bytes)});
  }
  folder.Write("model.safetensors", test::SafetensorsFile(tensors));
}

uint64_t ResidentBytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string word;
  uint64_t kib = 0;
  while (status >> word) {
    if (word == "VmRSS:" && status >> kib) return kib * 1024;
  }
  return 0;
}

struct Server {
  explicit Server(std::vector<std::string> flags) : process(With(std::move(flags))) {
    const std::string line = process.WaitForLine(kListening);
    EXPECT_FALSE(line.empty()) << process.err();
    if (const auto url = cli::ParseHttpUrl(line.substr(std::min(line.size(), sizeof kListening - 1))))
      port = url->port;
  }
  static std::vector<std::string> With(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {PERIGEE_PROGRAM, "serve", "--port", "0"});
    return flags;
  }
  Json Info() const { return Json::parse(test::Get(port, "/server_info").body); }

  Process process;
  int port = 0;
};

Json Planned(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {PERIGEE_PROGRAM, "plan", "--prompt", "1", "--json"});
  const Finished plan = RunToEnd(flags);
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  return Json::parse(plan.out).at("memory");
}

// Everything but what was free at that moment.
void ExpectSamePlan(Json served, Json planned) {
  for (Json* plan : {&served, &planned}) {
    for (const char* key : {"available", "budget"}) plan->erase(key);
  }
  EXPECT_EQ(served, planned);
}

TEST(Memory, ServerAndPlanSayTheSame) {
  for (const std::vector<std::string>& spread :
       {std::vector<std::string>{},
        {"--tp", "4", "--attn-cp-size", "2", "--enable-prefill-cp", "--cp-strategy", "contiguous"}}) {
    std::vector<std::string> flags = {
        "--model-path",           kTiny, "--max-total-tokens", "8192", "--max-running-requests", "7",
        "--chunked-prefill-size", "256", "--threads",          "3",    "--mem-fraction-static",  "0.5"};
    flags.insert(flags.end(), spread.begin(), spread.end());
    const Server server(flags);
    ExpectSamePlan(server.Info().at("memory_plan"), Planned(flags));
  }
}

TEST(Memory, AModelThatDoesNotFitIsRefusedBeforeItIsRead) {
  const Finished serve = RunToEnd(
      {PERIGEE_PROGRAM, "serve", "--port", "0", "--model-path", kTiny, "--max-total-tokens", "1000000000"});
  EXPECT_EQ(serve.exit_code, 1);
  EXPECT_NE(serve.err.find("would fit: --max-running-requests 64 --max-total-tokens "), std::string::npos)
      << serve.err;
  // The plan comes before the refusal.
  EXPECT_LT(serve.err.find("rank 0: "), serve.err.find("would fit: "));
}

// What the plan says before weights are read holds: its longest request is served, a token more is not, and
// the pool is not taken for the model's context.
TEST(Memory, TheLongestRequestIsServedAndNoneBeyond) {
  Server server({"--model-path", kTiny, "--max-total-tokens", "512", "--threads", "2"});
  const std::string report = server.process.err();
  for (const char* part : {"fits: 512 tokens at 4.50 KiB",
                           "longest request: 512 tokens (the pool; the context length is 131,072)"}) {
    EXPECT_NE(report.find(part), std::string::npos) << report;
  }
  const auto ask = [&](int prompt, int answer) {
    const Json body = {{"input_ids", std::vector<int>(static_cast<size_t>(prompt), 7)},
                       {"sampling_params", {{"max_new_tokens", answer}, {"ignore_eos", true}}}};
    return test::Post(server.port, "/generate", body.dump());
  };
  EXPECT_EQ(ask(500, 12).status, 200);
  const test::HttpReply refused = ask(500, 13);
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("latent pool of 512 tokens (--max-total-tokens)"), std::string::npos)
      << refused.body;
  const Json models = Json::parse(test::Get(server.port, "/v1/models").body);
  EXPECT_EQ(models.at("data").at(0).at("max_model_len"), 131'072);
  EXPECT_EQ(server.Info().at("memory_plan").at("longest_request"), 512);
}

// Serves the model, runs the largest prefill step, and compares.
void ExpectResidentAsPlanned(int width) {
  const test::TempFolder folder;
  WriteWideModel(folder, width);
  const Server server({"--model-path", folder.path(), "--max-total-tokens", "1024", "--max-running-requests",
                       "4", "--chunked-prefill-size", "256", "--threads", "2"});
  const Json prompt = {{"input_ids", std::vector<int>(900, 7)},
                       {"sampling_params", {{"max_new_tokens", 4}, {"ignore_eos", true}}},
                       {"return_logprob", true},
                       {"logprob_start_len", 0}};
  EXPECT_EQ(test::Post(server.port, "/generate", prompt.dump()).status, 200);
  const Json info = server.Info();
  const auto plan = info.at("memory_plan").at("total").get<double>();
  const auto resident = static_cast<double>(ResidentBytes(server.process.pid()));
  EXPECT_GT(plan, 2.0 * 147'456 * 5 * width);
  EXPECT_NEAR(resident / plan, 1, 0.1);
  std::printf("%.0f bytes resident, %.0f planned: %.4f\n", resident, plan, resident / plan);
  const Json& ranks = info.at("memory_plan").at("per_rank");
  for (const char* kind : {"weights", "latents", "workspace"})
    EXPECT_EQ(info.at("memory_peak").at(0).at(kind), ranks.at(0).at(kind)) << kind;
}

TEST(Memory, ResidentMemoryIsThePlan) {
  ExpectResidentAsPlanned(128);
}

// Half a billion parameters: takes 4 GiB of memory and 1 GiB of disk.
TEST(Memory, DISABLED_ResidentMemoryOf500MillionParameters) {
  ExpectResidentAsPlanned(680);
}

}  // namespace
}  // namespace perigee::testing
