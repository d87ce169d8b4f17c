BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('v3.2.0.a');
CREATE TABLE studies (
	study_id INTEGER NOT NULL, 
	study_name VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study_id)
);
INSERT INTO "studies" VALUES(1,'gemm_sm90-4096x4096x4096-bf16-h200-replay-random-s0');
CREATE TABLE study_directions (
	study_direction_id INTEGER NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	study_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	PRIMARY KEY (study_direction_id), 
	UNIQUE (study_id, objective), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_directions" VALUES(1,'MINIMIZE',1,0);
CREATE TABLE study_system_attributes (
	study_system_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_system_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
CREATE TABLE study_user_attributes (
	study_user_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_user_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_user_attributes" VALUES(1,1,'beat:4f64544862da','"left"');
INSERT INTO "study_user_attributes" VALUES(2,1,'about','{"space_hash": "b7af357f8911d5fa4fafe83010de301abe7a6694113453a17b322692b191be78", "library_us": 198.40000569820404}');
INSERT INTO "study_user_attributes" VALUES(3,1,'info','{"name": "gemm_sm90-4096x4096x4096-bf16-h200-replay-random-s0", "space": "gemm_sm90", "space_hash": "b7af357f8911d5fa4fafe83010de301abe7a6694113453a17b322692b191be78", "problem": "4096x4096x4096:bf16", "device": "h200", "sampler": "random", "seed": 0, "provenance": {"kind": "replay", "description": "replayed from gemm_sm90-h200-bf16.parquet, recorded on NVIDIA H200 on 2026-11-21; no GPU was used", "versions": {"torch": "2.11.0+cu130", "cuda": "13.0", "nvidia-cutlass-dsl": "4.8.1", "ray": "2.60.0", "driver": "580.159.04", "protocol": "paired-7"}, "table": {"name": "gemm_sm90-h200-bf16.parquet", "path": "/home/somebody/tilescout/search/tables/recorded/gemm_sm90-h200-bf16.parquet", "sha256": "f6bc147529c67c6102f00e170fb1c751324222fee38e95d95073ae0edaf9b0dd", "rows": 90505, "columns": {"schedule": "dictionary<values=string, indices=int32, ordered=0>", "warp_groups": "int32", "swap_ab": "int32", "tile_m": "int32", "tile_n": "int32", "tile_k": "int32", "split_k": "int32", "cluster_m": "int32", "cluster_n": "int32", "stages": "int32", "swizzle": "int32", "raster": "dictionary<values=string, indices=int32, ordered=0>", "problem": "dictionary<values=string, indices=int32, ordered=0>", "status": "dictionary<values=string, indices=int32, ordered=0>", "error": "dictionary<values=string, indices=int32, ordered=0>", "ratio": "double", "ratio_q25": "double", "ratio_q75": "double", "ratio_low": "double", "ratio_high": "double", "library_us": "double", "pairs": "int32", "registers": "int32", "spill_bytes": "int32", "shared_memory": "int32", "instructions": "int32", "pilot_us": "double", "relative_error": "double", "compile_seconds": "double", "gpu_seconds": "double", "verify_seconds": "double", "pilot_seconds": "double", "sm_mhz": "double", "power_w": "double", "temperature_c": "double", "throttle": "dictionary<values=string, indices=int32, ordered=0>"}}}, "default": {"schedule": "cooperative", "warp_groups": 2, "swap_ab": 0, "tile_m": 128, "tile_n": 256, "tile_k": 64, "split_k": 1, "cluster_m": 1, "cluster_n": 2, "stages": 4, "swizzle": 2, "raster": "m"}, "library": "torch.mm", "library_us": 198.40000569820404, "knobs": {"schedule": ["cooperative", "pingpong"], "warp_groups": [1, 2, 3, 4], "swap_ab": [0, 1], "tile_m": [64, 128, 192, 256], "tile_n": [16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256], "tile_k": [32, 64, 128], "split_k": [1, 2, 4, 8], "cluster_m": [1, 2, 4], "cluster_n": [1, 2, 4], "stages": [2, 3, 4, 5, 6, 7, 8], "swizzle": [1, 2, 4, 8], "raster": ["m", "n"]}, "size": 4373, "model": "", "hindsight": false}');
INSERT INTO "study_user_attributes" VALUES(4,1,'result','{"study": "gemm_sm90-4096x4096x4096-bf16-h200-replay-random-s0", "space": "gemm_sm90", "space_hash": "b7af357f8911d5fa4fafe83010de301abe7a6694113453a17b322692b191be78", "problem": "4096x4096x4096:bf16", "device": "h200", "measured_by": {"kind": "replay", "description": "replayed from gemm_sm90-h200-bf16.parquet, recorded on NVIDIA H200 on 2026-11-21; no GPU was used"}, "versions": {"torch": "2.11.0+cu130", "cuda": "13.0", "nvidia-cutlass-dsl": "4.8.1", "ray": "2.60.0", "driver": "580.159.04", "protocol": "paired-7"}, "best": {"trial": 0, "configuration": {"schedule": "cooperative", "warp_groups": 2, "swap_ab": 0, "tile_m": 128, "tile_n": 256, "tile_k": 64, "split_k": 1, "cluster_m": 1, "cluster_n": 2, "stages": 4, "swizzle": 2, "raster": "m"}, "time_us": 197.3061655501379, "interval_us": [196.60644389646163, 198.00837751075895], "tflops": 696.5770840905379, "speedup_over_library": 1.005543872108691, "status": "ok"}, "library": {"name": "torch.mm", "time_us": 198.40000569820404, "tflops": 692.7366407492201}, "race": null, "not_raced": "", "seconds": 4.220678819, "stopped": ""}');
CREATE TABLE tilescout_locks (
	study VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study)
);
CREATE TABLE trial_heartbeats (
	trial_heartbeat_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	heartbeat DATETIME NOT NULL, 
	PRIMARY KEY (trial_heartbeat_id), 
	UNIQUE (trial_id), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_intermediate_values (
	trial_intermediate_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	intermediate_value FLOAT, 
	intermediate_value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_intermediate_value_id), 
	UNIQUE (trial_id, step), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_params (
	param_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	param_name VARCHAR(512), 
	param_value FLOAT, 
	distribution_json TEXT, 
	PRIMARY KEY (param_id), 
	UNIQUE (trial_id, param_name), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_params" VALUES(1,1,'schedule',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 1}}');
INSERT INTO "trial_params" VALUES(2,1,'warp_groups',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(3,1,'swap_ab',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 1}}');
INSERT INTO "trial_params" VALUES(4,1,'tile_m',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(5,1,'tile_n',15.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 15}}');
INSERT INTO "trial_params" VALUES(6,1,'tile_k',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 2}}');
INSERT INTO "trial_params" VALUES(7,1,'split_k',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(8,1,'cluster_m',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 2}}');
INSERT INTO "trial_params" VALUES(9,1,'cluster_n',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 2}}');
INSERT INTO "trial_params" VALUES(10,1,'stages',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 6}}');
INSERT INTO "trial_params" VALUES(11,1,'swizzle',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(12,1,'raster',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 1}}');
INSERT INTO "trial_params" VALUES(13,2,'schedule',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 1}}');
INSERT INTO "trial_params" VALUES(14,2,'warp_groups',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(15,2,'swap_ab',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 1}}');
INSERT INTO "trial_params" VALUES(16,2,'tile_m',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(17,2,'tile_n',5.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 15}}');
INSERT INTO "trial_params" VALUES(18,2,'tile_k',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 2}}');
INSERT INTO "trial_params" VALUES(19,2,'split_k',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(20,2,'cluster_m',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 2}}');
INSERT INTO "trial_params" VALUES(21,2,'cluster_n',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 2}}');
INSERT INTO "trial_params" VALUES(22,2,'stages',4.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 6}}');
INSERT INTO "trial_params" VALUES(23,2,'swizzle',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(24,2,'raster',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 1}}');
INSERT INTO "trial_params" VALUES(25,3,'schedule',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 1}}');
INSERT INTO "trial_params" VALUES(26,3,'warp_groups',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(27,3,'swap_ab',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 1}}');
INSERT INTO "trial_params" VALUES(28,3,'tile_m',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(29,3,'tile_n',13.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 15}}');
INSERT INTO "trial_params" VALUES(30,3,'tile_k',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 2}}');
INSERT INTO "trial_params" VALUES(31,3,'split_k',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(32,3,'cluster_m',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 2}}');
INSERT INTO "trial_params" VALUES(33,3,'cluster_n',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 2}}');
INSERT INTO "trial_params" VALUES(34,3,'stages',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 6}}');
INSERT INTO "trial_params" VALUES(35,3,'swizzle',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}');
INSERT INTO "trial_params" VALUES(36,3,'raster',0.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 1}}');
CREATE TABLE trial_system_attributes (
	trial_system_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_system_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_system_attributes" VALUES(1,1,'fixed_params','{"schedule": 0, "warp_groups": 1, "swap_ab": 0, "tile_m": 1, "tile_n": 15, "tile_k": 1, "split_k": 0, "cluster_m": 0, "cluster_n": 1, "stages": 2, "swizzle": 1, "raster": 0}');
INSERT INTO "trial_system_attributes" VALUES(2,2,'tilescout:claim','[0, 0, 0, 2, 5, 1, 0, 1, 2, 4, 0, 0]');
INSERT INTO "trial_system_attributes" VALUES(3,3,'tilescout:claim','[1, 1, 0, 0, 13, 1, 0, 0, 1, 3, 0, 0]');
CREATE TABLE trial_user_attributes (
	trial_user_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_user_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_user_attributes" VALUES(1,1,'tuner','"4f64544862da"');
INSERT INTO "trial_user_attributes" VALUES(2,1,'measurement','{"status": "ok", "error": "", "timing": {"ratio": 0.9944866929604325, "ratio_q25": 0.9938061019492355, "ratio_q75": 0.9951676770961299, "ratio_low": 0.9909598702105347, "ratio_high": 0.9980260676602962, "library_us": 198.40000569820404, "pairs": 6}, "pilot_us": 192.06696851940433, "resources": {"registers": 168, "spill_bytes": 0, "shared_memory": 231424, "instructions": 784}, "clocks": {"sm_mhz": 1980.0, "power_w": 502.013, "temperature_c": 59.0, "throttle": ""}, "relative_error": 0.001661525848524065, "compile_seconds": 1.4097080210000001, "gpu_seconds": 0.006712245000016992, "verify_seconds": 0.0011233050000214462, "pilot_seconds": 0.0009157779999782178}');
INSERT INTO "trial_user_attributes" VALUES(3,2,'tuner','"4f64544862da"');
INSERT INTO "trial_user_attributes" VALUES(4,2,'measurement','{"status": "ok", "error": "", "timing": {"ratio": 1.2093335722859186, "ratio_q25": 1.2087442347695427, "ratio_q75": 1.2099240608405673, "ratio_low": 1.2003425433484964, "ratio_high": 1.218391947500286, "library_us": 198.40000569820404, "pairs": 2}, "pilot_us": 235.15517282238437, "resources": {"registers": 170, "spill_bytes": 0, "shared_memory": 231424, "instructions": 864}, "clocks": {"sm_mhz": 1980.0, "power_w": 534.691, "temperature_c": 60.0, "throttle": ""}, "relative_error": 0.001661525848524065, "compile_seconds": 1.6157866669999947, "gpu_seconds": 0.0032276590000037686, "verify_seconds": 0.000764245999960167, "pilot_seconds": 0.0007548140000039893}');
INSERT INTO "trial_user_attributes" VALUES(5,3,'tuner','"4f64544862da"');
INSERT INTO "trial_user_attributes" VALUES(6,3,'measurement','{"status": "ok", "error": "", "timing": {"ratio": 1.3901752921730675, "ratio_q25": 1.3726535450321242, "ratio_q75": 1.4086278075324947, "ratio_low": 1.3649234797751542, "ratio_high": 1.415894276569139, "library_us": 198.40000569820404, "pairs": 2}, "pilot_us": 261.3579046975692, "resources": {"registers": 168, "spill_bytes": 0, "shared_memory": 202752, "instructions": 760}, "clocks": {"sm_mhz": 1980.0, "power_w": 509.491, "temperature_c": 58.0, "throttle": ""}, "relative_error": 0.001661525848524065, "compile_seconds": 1.4795370860000219, "gpu_seconds": 0.0041424180000149136, "verify_seconds": 0.0010284100000035323, "pilot_seconds": 0.000999067999998715}');
CREATE TABLE trial_values (
	trial_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	value FLOAT, 
	value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_value_id), 
	UNIQUE (trial_id, objective), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_values" VALUES(1,1,0,1.97306165550137905034e+02,'FINITE');
INSERT INTO "trial_values" VALUES(2,2,0,2.39931787632555710838e+02,'FINITE');
INSERT INTO "trial_values" VALUES(3,3,0,2.75810785888639031782e+02,'FINITE');
CREATE TABLE trials (
	trial_id INTEGER NOT NULL, 
	number INTEGER, 
	study_id INTEGER, 
	state VARCHAR(8) NOT NULL, 
	datetime_start DATETIME, 
	datetime_complete DATETIME, 
	PRIMARY KEY (trial_id), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-22 09:52:27.102579','2026-11-22 09:52:27.559137');
INSERT INTO "trials" VALUES(2,1,1,'COMPLETE','2026-11-22 09:52:27.855459','2026-11-22 09:52:28.426278');
INSERT INTO "trials" VALUES(3,2,1,'COMPLETE','2026-11-22 09:52:28.470896','2026-11-22 09:52:28.991472');
CREATE TABLE version_info (
	version_info_id INTEGER NOT NULL, 
	schema_version INTEGER, 
	library_version VARCHAR(256), 
	PRIMARY KEY (version_info_id), 
	CHECK (version_info_id=1)
);
INSERT INTO "version_info" VALUES(1,12,'5.0.0');
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
COMMIT;
