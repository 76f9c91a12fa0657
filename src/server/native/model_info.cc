#include "server/native/model_info.h"

#include "server/json_writer.h"

namespace perigee::server {

HttpResponse ModelInfo(const ServingContext& context, const HttpRequest&) {
  const engine::ModelInfo& info = context.engine->model_info();
  JsonWriter w;
  w.BeginObject().Field("model_path", info.model_path).Field("tokenizer_path", info.model_path);
  w.Field("served_model_name", context.served_model_name).Field("is_generation", true);
  w.Field("vocab_size", info.vocab_size).Field("context_length", info.context_length);
  w.Field("max_total_tokens", info.max_total_tokens).Key("stop_token_ids").BeginArray();
  for (engine::TokenId id : info.stop_ids) w.Value(id);
  w.EndArray().EndObject();
  return {.status = 200, .body = w.Take()};
}

}  // namespace perigee::server
