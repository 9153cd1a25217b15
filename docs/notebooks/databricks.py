# Databricks notebook source
# MAGIC %md
# MAGIC # Messages of a Service Bus queue in Databricks
# MAGIC
# MAGIC Captures the queue `orders` into a Delta table, each message once, and looks at its dead letters. Import this
# MAGIC file as a notebook: Workspace, Import, File.
# MAGIC
# MAGIC Databricks Runtime 17 is Spark 4.0, and 19 (beta) is Spark 4.2. The runtime must be Spark 4.0 or newer. The
# MAGIC executors must reach the namespace over the network, by the host name of the connection string.

# COMMAND ----------

# MAGIC %md
# MAGIC ## Install
# MAGIC
# MAGIC Upload the wheel to a volume, and install it for this notebook. For jobs, add the same file as a library of the
# MAGIC compute or to the environment of the job, so that it is there when the compute starts.

# COMMAND ----------

# MAGIC %pip install /Volumes/main/bus/wheels/peeklock-0.1.0-py3-none-any.whl

# COMMAND ----------

dbutils.library.restartPython()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Where messages come from
# MAGIC
# MAGIC The connection string is in a secret scope: `databricks secrets put-secret bus connection-string`.

# COMMAND ----------

source = {
    "connectionString": dbutils.secrets.get(scope="bus", key="connection-string"),
    "queue": "orders",
}

# COMMAND ----------

# MAGIC %md
# MAGIC ## Look, without taking anything

# COMMAND ----------

messages = spark.read.format("servicebus").options(**source).load()
messages.groupBy("state", "subject").count().show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Capture
# MAGIC
# MAGIC Checkpoint and table are in a volume, which the driver reaches by the same path. On Spark 4.0 and 4.1 the
# MAGIC trigger `availableNow` ends after one batch. `drain` runs the query until the queue is empty, and removes the
# MAGIC messages of the last batch; on newer versions it is one run.

# COMMAND ----------

lake = "/Volumes/main/bus/lake"
checkpoint = f"{lake}/checkpoints/orders"
orders = f"{lake}/orders"

# COMMAND ----------

from peeklock.spark.draining import drain

stream = spark.readStream.format("servicebus").options(**source).option("maxMessagesPerTrigger", "100000").load()
drain(stream.writeStream.format("delta").option("path", orders), source, checkpoint)
spark.read.format("delta").load(orders).count()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Dead letters
# MAGIC
# MAGIC Reads them without locking or removing any. `causes` compares them with what waits in the queue.

# COMMAND ----------

from peeklock.spark.pipelines import dead_letters

namespace = {"connectionString": source["connectionString"]}
failed = dead_letters.read_dead_letters(spark, namespace, ["orders"])
waiting = dead_letters.read_waiting(spark, namespace, ["orders"])
tables = dead_letters.triage(failed, waiting)
tables["by_reason"].show(truncate=False)
tables["causes"].show(truncate=False)

# COMMAND ----------

# MAGIC %md
# MAGIC To send them again, from a machine with the package:

# COMMAND ----------

# MAGIC %md
# MAGIC ```sh
# MAGIC peeklock pipeline dead-letters orders --where "dead_letter_reason = 'Bad'" --resubmit
# MAGIC ```

# COMMAND ----------

# MAGIC %md
# MAGIC ## Send

# COMMAND ----------

from pyspark.sql import functions as F

rows = spark.range(3).select(
    F.concat(F.lit("order "), F.col("id").cast("string")).alias("body"),
    F.concat(F.lit("order-"), F.col("id").cast("string")).alias("message_id"),
    F.lit("created").alias("subject"),
)
rows.write.format("servicebus").options(**source).mode("append").save()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Schedule
# MAGIC
# MAGIC Run this notebook as a job. A run that was interrupted goes on where it was, as long as the checkpoint is kept.
