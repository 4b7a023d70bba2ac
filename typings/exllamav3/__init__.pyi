# The names of exllamav3 1.6.5 that daemon/engine/exl3 uses, with the types they really have.
from exllamav3.cache.cache import Cache as Cache
from exllamav3.cache.cache import CacheLayer_fp16 as CacheLayer_fp16
from exllamav3.cache.cache import CacheLayer_quant as CacheLayer_quant
from exllamav3.generator.generator import Generator as Generator
from exllamav3.generator.job import Job as Job
from exllamav3.generator.sampler import ComboSampler as ComboSampler
from exllamav3.generator.sampler import CustomSampler as CustomSampler
from exllamav3.model import Config as Config
from exllamav3.model import Model as Model
from exllamav3.tokenizer import Tokenizer as Tokenizer
