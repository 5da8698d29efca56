-- A database as version 0001 of the schema made it: what every later version must take over.
BEGIN TRANSACTION;
CREATE TABLE kernel (
	hash VARCHAR(64) NOT NULL, 
	name VARCHAR NOT NULL, 
	source TEXT NOT NULL, 
	"plan" TEXT NOT NULL, 
	origin VARCHAR NOT NULL, 
	added VARCHAR DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	CONSTRAINT pk_kernel PRIMARY KEY (hash)
);
INSERT INTO "kernel" VALUES('a525acb58d34732b8c43ad9932800620308e6d0b93218b916d2f926707fa0487','one','extern "C" __global__ void f() {}
','{"arch":["sm_90"],"name":"one","version":1}','test','2026-01-01 00:00:00');
CREATE TABLE kernel_arch (
	arch VARCHAR NOT NULL, 
	kernel VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_kernel_arch PRIMARY KEY (arch, kernel), 
	CONSTRAINT fk_kernel_arch_kernel FOREIGN KEY(kernel) REFERENCES kernel (hash) ON DELETE CASCADE
);
INSERT INTO "kernel_arch" VALUES('sm_90','a525acb58d34732b8c43ad9932800620308e6d0b93218b916d2f926707fa0487');
CREATE TABLE measurement (
	id VARCHAR(64) NOT NULL, 
	workload VARCHAR NOT NULL, 
	arch VARCHAR NOT NULL, 
	device VARCHAR NOT NULL, 
	subject VARCHAR NOT NULL, 
	kernel VARCHAR(64), 
	tunables TEXT NOT NULL, 
	run VARCHAR NOT NULL, 
	verdict VARCHAR NOT NULL, 
	median_us FLOAT, 
	low_us FLOAT, 
	high_us FLOAT, 
	evidence TEXT NOT NULL, 
	added VARCHAR DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	CONSTRAINT pk_measurement PRIMARY KEY (id), 
	CONSTRAINT fk_measurement_workload FOREIGN KEY(workload) REFERENCES workload ("key"), 
	CONSTRAINT fk_measurement_kernel FOREIGN KEY(kernel) REFERENCES kernel (hash), 
	CONSTRAINT ck_measurement_kernel CHECK ((subject = 'kernel') = (kernel IS NOT NULL))
);
INSERT INTO "measurement" VALUES('9ce1c7db3d552d020fd96c392e839672fa11c3e0d1602f940279bd28ec2fbbbb','vg1:f16.f16.f32.f16:nt:x1:m16:n4096:k4096:bias(f16)','sm_90','NVIDIA H200','kernel','a525acb58d34732b8c43ad9932800620308e6d0b93218b916d2f926707fa0487','{"BM":128,"STAGES":4}','run-1','accepted',12.5,12.25,13.0,'{"driver":"580.95","max_error":0.001}','2026-01-01 00:00:00');
INSERT INTO "measurement" VALUES('5f2885afd9ac61874f3576d7fcbf023e7a6610286821aee3d4e81525f481ac25','vg1:f16.f16.f32.f16:nt:x1:m16:n4096:k4096:bias(f16)','sm_90','NVIDIA H200','reference',NULL,'{}','run-1','accepted',12.5,12.25,13.0,'{"driver":"580.95","max_error":0.001}','2026-01-01 00:00:00');
INSERT INTO "measurement" VALUES('c9c1b852b1cc846da0848bc1f809c5f316c5833df7f33a8c3f24843de1e1c2d2','vg1:f16.f16.f32.f16:nt:x1:m16:n4096:k4096:bias(f16)','sm_90','NVIDIA H200','kernel','a525acb58d34732b8c43ad9932800620308e6d0b93218b916d2f926707fa0487','{"BM":128,"STAGES":4}','run-2','wrong at (0, 7)',NULL,NULL,NULL,'{"driver":"580.95","max_error":0.001}','2026-01-01 00:00:00');
INSERT INTO "measurement" VALUES('9530cb8464b1253e19dab17defe0652d5ba52278462ef0a67e76662c58461399','vg1:f16.f16.f32.f16:nt:x1:m*:n4096:k4096:bias(f16)','sm_90','NVIDIA H200','reference',NULL,'{}','run-1','accepted',12.5,12.25,13.0,'{"driver":"580.95","max_error":0.001}','2026-01-01 00:00:00');
CREATE TABLE meta (
	"key" VARCHAR NOT NULL, 
	value TEXT NOT NULL, 
	CONSTRAINT pk_meta PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('schedules:0','1');
CREATE TABLE vibegemm_schema (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT vibegemm_schema_pkc PRIMARY KEY (version_num)
);
INSERT INTO "vibegemm_schema" VALUES('0001');
CREATE TABLE workload (
	"key" VARCHAR NOT NULL, 
	family VARCHAR NOT NULL, 
	m INTEGER, 
	n INTEGER NOT NULL, 
	k INTEGER NOT NULL, 
	batch INTEGER NOT NULL, 
	types VARCHAR NOT NULL, 
	layout VARCHAR(2) NOT NULL, 
	CONSTRAINT pk_workload PRIMARY KEY ("key")
);
INSERT INTO "workload" VALUES('vg1:f16.f16.f32.f16:nt:x1:m*:n4096:k4096:bias(f16)','vg1:f16.f16.f32.f16:nt:x1:m*:n4096:k4096:bias(f16)',NULL,4096,4096,1,'f16.f16.f32.f16','nt');
INSERT INTO "workload" VALUES('vg1:f16.f16.f32.f16:nt:x1:m16:n4096:k4096:bias(f16)','vg1:f16.f16.f32.f16:nt:x1:m*:n4096:k4096:bias(f16)',16,4096,4096,1,'f16.f16.f32.f16','nt');
CREATE INDEX ix_kernel_name ON kernel (name);
CREATE INDEX ix_kernel_arch_kernel ON kernel_arch (kernel);
CREATE INDEX ix_workload_family ON workload (family);
CREATE INDEX ix_measurement_decision ON measurement (workload, arch, verdict, device, run);
CREATE INDEX ix_measurement_kernel ON measurement (kernel);
CREATE INDEX ix_measurement_run ON measurement (run);
COMMIT;
